// hoststoml prints where containerd asks for the images of registries: hoststoml DIRECTORY REGISTRY... It is containerd's own reader of
// hosts.toml. It is built with the module of the payload's containerd, so that both have one version.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
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
		log.Fatal("usage: hoststoml DIRECTORY REGISTRY...")
	}
	read := config.ConfigureHosts(context.Background(), config.HostOptions{HostDir: config.HostDirFromRoot(os.Args[1])})
	found := map[string][]host{}
	for _, registry := range os.Args[2:] {
		hosts, err := read(registry)
		if err != nil {
			log.Fatalf("%s: %v", registry, err)
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
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
}
