// hostoverlay takes the place of hybrid-overlay-node on a Wine host. Like the real one, it obtains a certificate of its own
// with the kubeconfig that it is given, waits for its Node's part of the pod network, makes the networks in HNS and annotates
// the Node. It routes nothing, renews no certificate, and uses version 1 of HNS' interface, where the real one uses version 2.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/Microsoft/hnslib"
	certificates "k8s.io/api/certificates/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"

	"testbed/winservice"
)

const (
	// What the control plane of OVN-Kubernetes says to a node, and a node to the others.
	subnetAnnotation = "k8s.ovn.org/hybrid-overlay-node-subnet"
	macAnnotation    = "k8s.ovn.org/hybrid-overlay-distributed-router-gateway-mac"
	// The first network keeps the host's switch while the second is made again.
	baseNetwork, network = "BaseOVNKubernetesHybridOverlayNetwork", "OVNKubernetesHybridOverlayNetwork"
)

type options struct {
	node, bootstrap, certDir, server, ca, logFile string
	certDuration                                  time.Duration
}

func main() {
	var o options
	var loglevel, port int
	var windowsService bool
	flag.StringVar(&o.node, "node", "", "")
	flag.StringVar(&o.bootstrap, "bootstrap-kubeconfig", "", "")
	flag.StringVar(&o.certDir, "cert-dir", "", "")
	flag.DurationVar(&o.certDuration, "cert-duration", 10*time.Minute, "")
	flag.StringVar(&o.server, "k8s-apiserver", "", "")
	flag.StringVar(&o.ca, "k8s-cacert", "", "")
	flag.StringVar(&o.logFile, "logfile", "", "")
	flag.IntVar(&loglevel, "loglevel", 4, "")
	flag.IntVar(&port, "hybrid-overlay-vxlan-port", 4789, "")
	flag.BoolVar(&windowsService, "windows-service", false, "")
	flag.Parse()
	if flag.NArg() > 0 || !windowsService {
		log.Fatalf("not understood: %q", os.Args)
	}
	if err := winservice.LogTo(o.logFile); err != nil {
		log.Fatal(err)
	}
	winservice.Run("hybrid-overlay-node", o.run)
}

func (o options) run(ctx context.Context) error {
	client, err := o.client(ctx)
	if err != nil {
		return err
	}
	nodes := client.CoreV1().Nodes()
	var subnet string
	err = wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		var node *core.Node
		if node, err = nodes.Get(ctx, o.node, meta.GetOptions{}); err != nil {
			return false, err
		}
		subnet = node.Annotations[subnetAnnotation]
		return subnet != "", nil
	})
	if err != nil {
		return fmt.Errorf("get the Node: %w", err)
	}
	log.Printf("the node's part of the pod network is %s", subnet)
	_, parsed, err := net.ParseCIDR(subnet)
	if err != nil {
		return err
	}
	ip := parsed.IP.To4()
	ip[3]++
	if err := ensure(baseNetwork, "100.64.0.0/30", "100.64.0.2", 9999); err != nil {
		return err
	}
	if err := ensure(network, subnet, ip.String(), 4097); err != nil {
		return err
	}
	mac := fmt.Sprintf("00-15-5d-%02x-%02x-%02x", ip[1], ip[2], ip[3])
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{macAnnotation: mac}}})
	if err != nil {
		return err
	}
	if _, err := nodes.Patch(ctx, o.node, types.MergePatchType, patch, meta.PatchOptions{FieldManager: "hybrid-overlay-node"}); err != nil {
		return fmt.Errorf("annotate the Node: %w", err)
	}
	log.Print("the network is made")
	<-ctx.Done()
	return ctx.Err()
}

// client is one with a certificate of this program's own, which an approver of OVN-Kubernetes approves.
func (o options) client(ctx context.Context) (*kubernetes.Clientset, error) {
	file := filepath.Join(o.certDir, "ovnnode-client.pem")
	if _, err := tls.LoadX509KeyPair(file, file); err != nil {
		log.Printf("no certificate yet (%v)", err)
		pem, err := o.request(ctx)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(o.certDir, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, pem, 0o600); err != nil {
			return nil, err
		}
	}
	return kubernetes.NewForConfig(&rest.Config{
		Host:            o.server,
		TLSClientConfig: rest.TLSClientConfig{CAFile: o.ca, CertFile: file, KeyFile: file},
	})
}

// request returns a new certificate and its key.
func (o options) request(ctx context.Context) ([]byte, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.bootstrap)
	if err != nil {
		return nil, err
	}
	if config.CertFile == "" || config.KeyFile == "" {
		return nil, errors.New("the kubeconfig names no certificate")
	}
	bootstrap, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("use the kubeconfig: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	subject := pkix.Name{CommonName: "system:ovn-node:" + o.node, Organization: []string{"system:ovn-nodes"}}
	request, err := cert.MakeCSR(key, &subject, nil, nil)
	if err != nil {
		return nil, err
	}
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	name, uid, err := csr.RequestCertificateWithContext(
		ctx, bootstrap, request, "", certificates.KubeAPIServerClientSignerName, &o.certDuration, usages, key)
	if err != nil {
		return nil, fmt.Errorf("request a certificate: %w", err)
	}
	issued, err := csr.WaitForCertificate(ctx, bootstrap, name, uid)
	if err != nil {
		return nil, fmt.Errorf("wait for the certificate: %w", err)
	}
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	return append(issued, pem...), err
}

// ensure makes a network, unless it is there with this subnet.
func ensure(name, subnet, gateway string, vsid int) error {
	all, err := hnslib.HNSListNetworkRequest("GET", "", "")
	if err != nil {
		return fmt.Errorf("list HNS networks: %w", err)
	}
	for _, found := range all {
		if found.Name != name {
			continue
		}
		if len(found.Subnets) == 1 && found.Subnets[0].AddressPrefix == subnet {
			return nil
		}
		if _, err := found.Delete(); err != nil {
			return fmt.Errorf("remove HNS network %s: %w", name, err)
		}
	}
	policy := json.RawMessage(fmt.Sprintf(`{"Type":"VSID","VSID":%d}`, vsid))
	wanted := hnslib.HNSNetwork{
		Name: name, Type: "Overlay",
		Subnets: []hnslib.Subnet{{AddressPrefix: subnet, GatewayAddress: gateway, Policies: []json.RawMessage{policy}}},
	}
	if _, err := wanted.Create(); err != nil {
		return fmt.Errorf("make HNS network %s: %w", name, err)
	}
	return nil
}
