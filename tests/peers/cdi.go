// `peer cdi`: what the CDI library of container runtimes makes of the specs in a directory.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// What a container asks for, and what it gets.
type cdiAnswer struct {
	Error    string                `json:"error,omitempty"`
	Devices  []string              `json:"devices,omitempty"`  // qualified names of all there are
	Versions map[string]cdiVersion `json:"versions,omitempty"` // by file
	Spec     *oci.Spec             `json:"spec,omitempty"`     // a container without anything but the names asked for
}

type cdiVersion struct {
	Stated string `json:"stated"`
	Needed string `json:"needed"`
}

func cdiCommand(flags *flag.FlagSet) func(context.Context, *session) error {
	return func(context.Context, *session) error {
		answer, err := injected(flags.Arg(0), flags.Args()[min(1, flags.NArg()):])
		if err != nil {
			answer = &cdiAnswer{Error: err.Error()}
		}
		return json.NewEncoder(os.Stdout).Encode(answer)
	}
}

func injected(dir string, names []string) (*cdiAnswer, error) {
	if dir == "" {
		return nil, errors.New("usage: peer cdi DIRECTORY NAME...")
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	if err := cache.Refresh(); err != nil {
		return nil, err
	}
	answer := &cdiAnswer{Devices: cache.ListDevices(), Versions: map[string]cdiVersion{}, Spec: &oci.Spec{}}
	for _, vendor := range cache.ListVendors() {
		for _, spec := range cache.GetVendorSpecs(vendor) {
			needed, err := cdi.MinimumRequiredVersion(spec.Spec)
			if err != nil {
				return nil, err
			}
			answer.Versions[filepath.Base(spec.GetPath())] = cdiVersion{spec.Version, needed}
		}
	}
	_, err = cache.InjectDevices(answer.Spec, names...)
	return answer, err
}
