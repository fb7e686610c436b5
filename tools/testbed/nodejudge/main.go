// Prints what kubelet and kube-proxy of this module's version refuse of what a node gets: JSON objects on standard input, one for each node; a
// fault a line on standard output, with the number of the node before it. Only the build for Windows knows Windows' flags and rules. With an
// argument it prints its version and its User-Agent instead, which every program with the same linker flags has.
package main

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"
	"golang.org/x/net/http2"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/version"

	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	credentials "k8s.io/kubernetes/pkg/credentialprovider/plugin"
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
	if len(os.Args) > 1 {
		fmt.Printf("%s\n%s\n", version.Get(), rest.DefaultKubernetesUserAgent())
		return
	}
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
		kubelet := flagSet("kubelet")
		for _, fault := range []error{
			arguments(kubelet, read.Arguments),
			config(codecs.UniversalDecoder(), read.Config),
			credentialProviders(kubelet, read.CredentialProviders),
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

func arguments(set *pflag.FlagSet, words []string) error {
	config, err := options.NewKubeletConfiguration()
	if err != nil {
		return err
	}
	flags := options.NewKubeletFlags()
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
	if _, err := logs.NewContainerLogManager(nil, nil, read.ContainerLogMaxSize, int(read.ContainerLogMaxFiles),
		int(read.ContainerLogMaxWorkers), read.ContainerLogMonitorInterval); err != nil {
		return err
	}
	return serving(read)
}

// serving makes what kubelet serves with, and lets HTTP/2 judge it as Go's server does.
func serving(config *kubeletconfig.KubeletConfiguration) error {
	ciphers, err := cliflag.TLSCipherSuites(config.TLSCipherSuites)
	if err != nil {
		return err
	}
	version, err := cliflag.TLSVersion(config.TLSMinVersion)
	if err != nil {
		return err
	}
	return http2.ConfigureServer(&http.Server{TLSConfig: &tls.Config{CipherSuites: ciphers, MinVersion: version}}, nil)
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

// judged has a verdict for each document of credential providers: kubelet registers a provider once in its life.
var judged = map[string]error{}

// credentialProviders registers the providers, whose programs are in the directory that the command line names.
func credentialProviders(kubelet *pflag.FlagSet, text string) error {
	if text == "" {
		return nil
	}
	programs := kubelet.Lookup("image-credential-provider-bin-dir")
	if programs == nil {
		return errors.New("kubelet knows no directory of credential providers")
	}
	if _, isJudged := judged[text]; !isJudged {
		folder, err := os.MkdirTemp("", "")
		if err != nil {
			return err
		}
		defer os.RemoveAll(folder)
		file := filepath.Join(folder, "providers.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		judged[text] = credentials.RegisterCredentialProviderPlugins(file, programs.Value.String(), nil, nil)
	}
	return judged[text]
}
