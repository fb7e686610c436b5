// containerdjudge prints what a containerd reads from files of a node. It is built with the module of that containerd, whose own code reads them.
//
//	containerdjudge hosts DIRECTORY REGISTRY...   where containerd asks for images of registries (hosts.toml)
//	containerdjudge networks DIRECTORY            networks of pods (CNI)
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/go-cni"
)

type host struct {
	URL     string      `json:"url"`
	Pull    bool        `json:"pull"`
	Resolve bool        `json:"resolve"`
	Push    bool        `json:"push"`
	Header  http.Header `json:"header"`
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: containerdjudge hosts DIRECTORY REGISTRY... | containerdjudge networks DIRECTORY")
	}
	var read any
	var err error
	switch directory := os.Args[2]; os.Args[1] {
	case "hosts":
		read, err = hosts(directory, os.Args[3:])
	case "networks":
		read, err = networks(directory)
	default:
		err = fmt.Errorf("unknown command %q", os.Args[1])
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(read)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func hosts(directory string, registries []string) (map[string][]host, error) {
	read := config.ConfigureHosts(context.Background(), config.HostOptions{HostDir: config.HostDirFromRoot(directory)})
	found := map[string][]host{}
	for _, registry := range registries {
		hosts, err := read(registry)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", registry, err)
		}
		found[registry] = []host{}
		for _, h := range hosts {
			found[registry] = append(found[registry], host{
				URL:     h.Scheme + "://" + h.Host + h.Path,
				Pull:    h.Capabilities.Has(docker.HostCapabilityPull),
				Resolve: h.Capabilities.Has(docker.HostCapabilityResolve),
				Push:    h.Capabilities.Has(docker.HostCapabilityPush),
				Header:  h.Header,
			})
		}
	}
	return found, nil
}

// networks loads them as containerd does on Windows.
func networks(directory string) ([]*cni.ConfNetwork, error) {
	library, err := cni.New(cni.WithPluginConfDir(directory), cni.WithPluginMaxConfNum(1))
	if err != nil {
		return nil, err
	}
	if err := library.Load(cni.WithDefaultConf); err != nil {
		return nil, err
	}
	return library.GetConfig().Networks, nil
}
