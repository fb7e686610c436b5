//go:build windows

// Package winservice answers the service manager of Windows for a program that does one thing until it is stopped.
package winservice

import (
	"context"
	"log"
	"os"
	"path/filepath"

	"golang.org/x/sys/windows/svc"
)

type service struct {
	run func(context.Context) error
}

func (s service) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (bool, uint32) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	running := svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	status <- running
	for {
		select {
		case err := <-ended:
			log.Printf("ended: %v", err)
			return true, 1
		case request := <-requests:
			switch request.Cmd {
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending}
				return false, 0
			case svc.Interrogate:
				status <- running
			}
		}
	}
}

// LogTo appends the program's log to a file.
func LogTo(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err == nil {
		log.SetOutput(file)
	}
	return err
}

// Run is the service `name` until it is stopped or `run` returns, which is a failure.
func Run(name string, run func(context.Context) error) {
	if err := svc.Run(name, service{run}); err != nil {
		log.Print(err)
		os.Exit(1)
	}
}
