// Prints what kubelet and kube-proxy of this module's version refuse of what a node gets: JSON objects on standard input, one for each node; a
// fault a line on standard output, with the number of the node before it. Only the build for Windows knows Windows' flags and rules.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/pflag"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
	credentials "k8s.io/kubelet/config/v1"
	"sigs.k8s.io/yaml"

	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	kubeletvalidation "k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/logs"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	proxyscheme "k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	proxyvalidation "k8s.io/kubernetes/pkg/proxy/apis/config/validation"
)

// node is what a node gets. What is empty is not judged.
type node struct {
	Arguments           []string `json:"arguments"`
	Config              string   `json:"config"`
	CredentialProviders string   `json:"credentialProviders"`
	ProxyArguments      []string `json:"proxyArguments"`
	ProxyConfig         string   `json:"proxyConfig"`
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	_, codecs, err := kubeletscheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err != nil {
		return err
	}
	nodes := json.NewDecoder(in)
	for number := 0; ; number++ {
		var read node
		if err := nodes.Decode(&read); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for _, fault := range []error{
			arguments(read.Arguments),
			config(codecs.UniversalDecoder(), read.Config),
			credentialProviders(read.CredentialProviders),
			proxyArguments(read.ProxyArguments),
			proxyConfig(read.ProxyConfig),
		} {
			if fault == nil {
				continue
			}
			if _, err := fmt.Fprintf(out, "%d: %q\n", number, fault.Error()); err != nil {
				return err
			}
		}
	}
}

func arguments(words []string) error {
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return err
	}
	flags := options.NewKubeletFlags()
	set := flagSet("kubelet")
	flags.AddFlags(set)
	options.AddKubeletConfigFlags(set, config)
	options.AddGlobalFlags(set)
	if err := parse(set, words); err != nil {
		return err
	}
	return options.ValidateKubeletFlags(flags)
}

func proxyArguments(words []string) error {
	set := flagSet("kube-proxy")
	proxy.NewOptions().AddFlags(set)
	return parse(set, words)
}

func flagSet(name string) *pflag.FlagSet {
	set := pflag.NewFlagSet(name, pflag.ContinueOnError)
	set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	set.SetOutput(io.Discard)
	return set
}

func parse(set *pflag.FlagSet, words []string) error {
	if err := set.Parse(words); err != nil {
		return err
	}
	if set.NArg() > 0 {
		return fmt.Errorf("unknown command %q", set.Args())
	}
	return nil
}

func config(decoder machinery.Decoder, text string) error {
	if text == "" {
		return nil
	}
	object, err := machinery.Decode(decoder, []byte(text))
	if err != nil {
		return err
	}
	read, ok := object.(*kubeletconfig.KubeletConfiguration)
	if !ok {
		return fmt.Errorf("a %T is no kubelet's configuration", object)
	}
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.SetFromMap(read.FeatureGates); err != nil {
		return err
	}
	// kubelet warns of these, and the next versions do not start with them.
	for gate, spec := range gates.GetAll() {
		if _, isSet := read.FeatureGates[string(gate)]; isSet && (spec.PreRelease == featuregate.GA || spec.PreRelease == featuregate.Deprecated) {
			return fmt.Errorf("feature gate %s needs not be set", gate)
		}
	}
	if err := kubeletvalidation.ValidateKubeletConfiguration(read, gates); err != nil {
		return err
	}
	// kubelet reads these when it starts, after its validation.
	for _, reserved := range []map[string]string{read.SystemReserved, read.KubeReserved} {
		if _, err := parseResourceList(reserved); err != nil {
			return err
		}
	}
	if _, err := eviction.ParseThresholdConfig(nil, read.EvictionHard, nil, nil, nil); err != nil {
		return err
	}
	_, err = logs.NewContainerLogManager(nil, nil, read.ContainerLogMaxSize, int(read.ContainerLogMaxFiles),
		int(read.ContainerLogMaxWorkers), read.ContainerLogMonitorInterval)
	return err
}

func proxyConfig(text string) error {
	if text == "" {
		return nil
	}
	object, err := machinery.Decode(proxyscheme.Codecs.UniversalDecoder(), []byte(text))
	if err != nil {
		return err
	}
	read, ok := object.(*proxyconfig.KubeProxyConfiguration)
	if !ok {
		return fmt.Errorf("a %T is no kube-proxy's configuration", object)
	}
	return proxyvalidation.Validate(read).ToAggregate()
}

func credentialProviders(text string) error {
	if text == "" {
		return nil
	}
	return yaml.UnmarshalStrict([]byte(text), &credentials.CredentialProviderConfig{})
}
