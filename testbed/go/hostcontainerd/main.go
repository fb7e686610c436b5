// hostcontainerd takes the place of containerd on a Wine host: a Windows service that runs until it receives a stop.
// The containers are hostkubelet's, which serves a container runtime to itself.
package main

import (
	"os"

	"golang.org/x/sys/windows/svc"
)

type service struct{}

func (service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	running := svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	status <- running
	for request := range requests {
		switch request.Cmd {
		case svc.Stop, svc.Shutdown:
			status <- svc.Status{State: svc.StopPending}
			return false, 0
		case svc.Interrogate:
			status <- running
		}
	}
	return false, 0
}

func main() {
	if err := svc.Run("containerd", service{}); err != nil {
		os.Exit(1)
	}
}
