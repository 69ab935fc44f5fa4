// What the kubelet's own metrics say of the calls that it made.
package main

import (
	"context"
	"encoding/json"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/pkg/kubelet/metrics"
)

const allocationDuration = metrics.KubeletSubsystem + "_" + metrics.DevicePluginAllocationDurationKey

// A metric that is not registered counts nothing.
func init() { legacyregistry.MustRegister(metrics.DevicePluginAllocationDuration) }

// allocations gives the number of Allocate calls for a resource since the start, failed ones too, and the
// seconds that the kubelet waited for all of them. A caller that asks before and after one call has its time.
func allocations(_ context.Context, args json.RawMessage) (any, error) {
	var in struct {
		Resource string `json:"resource"`
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, err
	}
	type waited struct {
		Calls   uint64  `json:"calls"`
		Seconds float64 `json:"seconds"`
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return nil, err
	}
	for _, family := range families {
		if family.GetName() != allocationDuration {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "resource_name" && label.GetValue() == in.Resource {
					histogram := metric.GetHistogram()
					return waited{histogram.GetSampleCount(), histogram.GetSampleSum()}, nil
				}
			}
		}
	}
	return waited{}, nil
}
