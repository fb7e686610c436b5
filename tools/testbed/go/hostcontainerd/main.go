//go:build windows

// hostcontainerd takes the place of containerd on a Wine host: a Windows service that knows the flags which nodes give to containerd, reads
// its configuration without an idea of it, begins the log, and runs until it receives a stop.
// The containers are hostkubelet's, which serves a container runtime to itself.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"

	"testbed/winservice"
)

func main() {
	config := flag.String("config", "", "")
	logFile := flag.String("log-file", "", "")
	level := flag.String("log-level", "info", "")
	runService := flag.Bool("run-service", false, "")
	flag.Parse()
	if flag.NArg() > 0 || !*runService {
		log.Fatalf("not understood: %q", os.Args)
	}
	if err := winservice.LogTo(*logFile); err != nil {
		log.Fatal(err)
	}
	winservice.Run("containerd", func(ctx context.Context) error {
		content, err := os.ReadFile(*config)
		if err != nil {
			return fmt.Errorf("read the configuration: %w", err)
		}
		log.Printf("level %s, a configuration of %d bytes", *level, len(content))
		<-ctx.Done()
		return ctx.Err()
	})
}
