//go:build windows

// hostnodemanager takes the place of azure-cloud-node-manager on a Wine host. Flags, client, informer, controller and the answers to
// the service manager are upstream's own. The cloud is not there: what the metadata service would say is made up, with the address
// that the host really has. And where the real one goes on logging that it may not watch its Node, this one ends.
package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/controller-manager/app"
	"k8s.io/klog/v2"
	"sigs.k8s.io/cloud-provider-azure/cmd/cloud-node-manager/app/options"
	"sigs.k8s.io/cloud-provider-azure/pkg/nodemanager"
	"sigs.k8s.io/cloud-provider-azure/pkg/windows/service"
)

func main() {
	if err := run(context.Background()); err != nil {
		klog.Error(err)
		klog.FlushAndExit(klog.ExitFlushTimeout, 1)
	}
}

func run(ctx context.Context) error {
	settings, err := options.NewCloudNodeManagerOptions()
	if err != nil {
		return err
	}
	flags := pflag.NewFlagSet("cloud-node-manager", pflag.ContinueOnError)
	sets := settings.Flags()
	for _, set := range sets.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(os.Args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 || !settings.WindowsService {
		return fmt.Errorf("not understood: %q", os.Args)
	}
	// It opens the kubeconfig, and what that names: without the token or the CA there is no client.
	config, err := settings.Config()
	if err != nil {
		return fmt.Errorf("use the kubeconfig: %w", err)
	}
	address, err := ownAddress(config.Kubeconfig.Host)
	if err != nil {
		return err
	}
	if err := service.InitService("cloud-node-manager"); err != nil {
		return err
	}

	nodes := config.SharedInformers.Core().V1().Nodes()
	err = nodes.Informer().SetWatchErrorHandler(func(_ *cache.Reflector, err error) {
		klog.Error(err)
		if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			klog.FlushAndExit(klog.ExitFlushTimeout, 1)
		}
	})
	if err != nil {
		return err
	}
	controller := nodemanager.NewCloudNodeController(
		config.NodeName, nodes, config.ClientBuilder.ClientOrDie("node-controller"), cloud{address},
		config.NodeStatusUpdateFrequency.Duration, config.WaitForRoutes, config.EnableDeprecatedBetaTopologyLabels)
	go controller.Run(ctx)
	if err := app.WaitForAPIServer(config.VersionedClient, 10*time.Second); err != nil {
		return err
	}
	config.SharedInformers.Start(ctx.Done())
	select {}
}

// ownAddress is the one by which this host reaches the API server.
func ownAddress(server string) (string, error) {
	parsed, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	// Not UDP, which needs no server: Wine refuses an option that Go sets for it.
	way, err := net.DialTimeout("tcp", parsed.Host, 10*time.Second)
	if err != nil {
		return "", err
	}
	defer way.Close()
	address, _, err := net.SplitHostPort(way.LocalAddr().String())
	return address, err
}

// cloud says of the host what Azure's metadata service would.
type cloud struct{ address string }

func (c cloud) NodeAddresses(_ context.Context, name types.NodeName) ([]core.NodeAddress, error) {
	return []core.NodeAddress{
		{Type: core.NodeHostName, Address: string(name)},
		{Type: core.NodeInternalIP, Address: c.address},
	}, nil
}

func (cloud) InstanceID(_ context.Context, name types.NodeName) (string, error) {
	const group = "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/testbed"
	return "azure://" + group + "/providers/Microsoft.Compute/virtualMachines/" + string(name), nil
}

func (cloud) InstanceType(context.Context, types.NodeName) (string, error) {
	return "Standard_D4s_v5", nil
}

func (cloud) GetZone(context.Context, types.NodeName) (cloudprovider.Zone, error) {
	return cloudprovider.Zone{FailureDomain: "westeurope-1", Region: "westeurope"}, nil
}

func (cloud) GetPlatformSubFaultDomain(context.Context) (string, error) { return "2", nil }

func (cloud) GetInterconnectGroupID(context.Context) (string, error) { return "", nil }
