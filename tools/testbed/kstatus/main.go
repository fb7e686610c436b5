// Prints what kstatus makes of each object that it reads: JSON objects on standard input, a word a line on standard output.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	objects := json.NewDecoder(bufio.NewReader(in))
	for {
		var text json.RawMessage
		if err := objects.Decode(&text); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			return err
		}
		result, err := status.Compute(object)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, result.Status); err != nil {
			return err
		}
	}
}
