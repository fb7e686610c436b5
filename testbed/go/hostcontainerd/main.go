//go:build windows

// hostcontainerd takes the place of containerd on a Wine host: a Windows service that runs until it receives a stop.
// The containers are hostkubelet's, which serves a container runtime to itself.
package main

import (
	"context"

	"testbed/winservice"
)

func main() {
	winservice.Run("containerd", func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
}
