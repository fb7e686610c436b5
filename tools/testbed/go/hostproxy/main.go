// hostproxy takes the place of kube-proxy on a Wine host. Configuration, its defaults and its check are upstream's own, but an
// unknown field is an error here. It needs what the real one needs of the host and of the API server, writes the event that the
// real one writes, and then keeps watching. It forwards nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/Microsoft/hnslib"
	core "k8s.io/api/core/v1"
	events "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	"k8s.io/kubernetes/pkg/proxy/apis/config/validation"

	"testbed/winservice"
)

func main() {
	file := flag.String("config", "", "")
	windowsService := flag.Bool("windows-service", false, "")
	flag.Parse()
	if flag.NArg() > 0 || !*windowsService {
		log.Fatalf("not understood: %q", os.Args)
	}
	winservice.Run("kube-proxy", func(ctx context.Context) error { return run(ctx, *file) })
}

func load(file string) (*config.KubeProxyConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	object, kind, err := scheme.Codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	settings, ok := object.(*config.KubeProxyConfiguration)
	if !ok {
		return nil, fmt.Errorf("it is a %v", kind)
	}
	return settings, validation.Validate(settings).ToAggregate()
}

func run(ctx context.Context, file string) error {
	settings, err := load(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	if err := host(settings.Winkernel); err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", settings.ClientConnection.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return fmt.Errorf("use the kubeconfig: %w", err)
	}
	node, err := client.CoreV1().Nodes().Get(ctx, settings.HostnameOverride, meta.GetOptions{})
	if err != nil {
		return fmt.Errorf("get the Node: %w", err)
	}

	refused := make(chan error, 2)
	factory := informers.NewSharedInformerFactory(client, 0)
	all := []cache.SharedIndexInformer{
		factory.Core().V1().Services().Informer(), factory.Discovery().V1().EndpointSlices().Informer(),
	}
	for _, informer := range all {
		err := informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
			log.Print(err)
			if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
				select {
				case refused <- err:
				default:
				}
			}
		})
		if err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	synced := make(chan struct{})
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), all[0].HasSynced, all[1].HasSynced) {
			close(synced)
		}
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-refused:
		return err
	case <-synced:
	}
	log.Print("has Services and EndpointSlices")
	if err := started(ctx, client, node); err != nil {
		return fmt.Errorf("write an event: %w", err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-refused:
		return err
	}
}

// host checks what must be there in HNS.
func host(settings config.KubeProxyWinkernelConfiguration) error {
	networks, err := hnslib.HNSListNetworkRequest("GET", "", "")
	if err != nil {
		return fmt.Errorf("list HNS networks: %w", err)
	}
	endpoints, err := hnslib.HNSListEndpointRequest()
	if err != nil {
		return fmt.Errorf("list HNS endpoints: %w", err)
	}
	for _, network := range networks {
		if network.Name != settings.NetworkName {
			continue
		}
		for _, endpoint := range endpoints {
			if endpoint.VirtualNetwork == network.Id && endpoint.IPAddress.String() == settings.SourceVip {
				return nil
			}
		}
		return fmt.Errorf("no HNS endpoint in %s has the address %q", network.Name, settings.SourceVip)
	}
	return fmt.Errorf("there is no HNS network %q", settings.NetworkName)
}

func started(ctx context.Context, client kubernetes.Interface, node *core.Node) error {
	_, err := client.EventsV1().Events(meta.NamespaceDefault).Create(ctx, &events.Event{
		ObjectMeta:          meta.ObjectMeta{GenerateName: node.Name + "-"},
		EventTime:           meta.MicroTime{Time: time.Now()},
		ReportingController: "kube-proxy",
		ReportingInstance:   "kube-proxy-" + node.Name,
		Action:              "StartKubeProxy",
		Reason:              "Starting",
		Regarding:           core.ObjectReference{Kind: "Node", Name: node.Name, UID: node.UID},
		Type:                core.EventTypeNormal,
	}, meta.CreateOptions{})
	return err
}
