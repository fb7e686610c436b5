// Prints what an API server of this module's version refuses of each CustomResourceDefinition that it reads: JSON objects on standard input, a
// fault a line on standard output.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
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
		read := &v1.CustomResourceDefinition{}
		if err := objects.Decode(read); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		v1.SetDefaults_CustomResourceDefinition(read)
		v1.SetDefaults_CustomResourceDefinitionSpec(&read.Spec)
		crd := &apiextensions.CustomResourceDefinition{}
		if err := v1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(read, crd, nil); err != nil {
			return err
		}
		// As the registry does before it stores one.
		for _, version := range crd.Spec.Versions {
			if version.Storage {
				crd.Status.StoredVersions = []string{version.Name}
			}
		}
		for _, fault := range validation.ValidateCustomResourceDefinition(context.Background(), crd) {
			if _, err := fmt.Fprintln(out, fault); err != nil {
				return err
			}
		}
	}
}
