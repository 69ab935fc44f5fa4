// Commands of `peer client`: calls to a registered plugin, timed one after the other.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type callQuery struct {
	Resource  string   `json:"resource"`
	N         int      `json:"n"`
	IDs       []string `json:"ids"`
	Each      bool     `json:"each"` // one call for each of the IDs, in place of n calls with all of them
	Available []string `json:"available"`
	Must      []string `json:"must"`
	Size      int32    `json:"size"`
	DownMS    int      `json:"down_ms"`
}

type timing struct {
	P50    int64  `json:"p50_us"`
	P90    int64  `json:"p90_us"`
	P99    int64  `json:"p99_us"`
	Max    int64  `json:"max_us"`
	Calls  int    `json:"calls"`
	Errors int    `json:"errors"`
	Error  string `json:"error,omitempty"` // the first one
	First  any    `json:"first,omitempty"` // what the first good call answered
}

func (k *fakeKubelet) handlers() map[string]handler {
	return map[string]handler{
		"allocate":  k.onPlugin(allocate),
		"preferred": k.onPlugin(preferred),
		"ids": k.onPlugin(func(_ context.Context, p *plugin, _ callQuery) any {
			p.mu.Lock()
			defer p.mu.Unlock()
			return maps.Clone(p.health)
		}),
		"restart": k.restart,
	}
}

func (k *fakeKubelet) onPlugin(run func(context.Context, *plugin, callQuery) any) handler {
	return func(ctx context.Context, args json.RawMessage) (any, error) {
		var in callQuery
		if err := json.Unmarshal(args, &in); err != nil {
			return nil, err
		}
		k.mu.Lock()
		p := k.plugins[in.Resource]
		k.mu.Unlock()
		if p == nil {
			return nil, fmt.Errorf("no plugin has registered %q", in.Resource)
		}
		return run(ctx, p, in), nil
	}
}

func allocate(ctx context.Context, p *plugin, in callQuery) any {
	n, ids := in.N, func(int) []string { return in.IDs }
	if in.Each {
		n, ids = len(in.IDs), func(call int) []string { return in.IDs[call : call+1] }
	}
	return measure(n, func(call int) (any, error) {
		answer, err := p.client.Allocate(ctx, allocateRequest(ids(call)))
		if err != nil {
			return nil, err
		}
		return answer.ContainerResponses, nil
	})
}

func preferred(ctx context.Context, p *plugin, in callQuery) any {
	request := &api.PreferredAllocationRequest{
		ContainerRequests: []*api.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: in.Available, MustIncludeDeviceIDs: in.Must, AllocationSize: in.Size,
		}},
	}
	return measure(in.N, func(int) (any, error) {
		answer, err := p.client.GetPreferredAllocation(ctx, request)
		if err != nil {
			return nil, err
		}
		if len(answer.ContainerResponses) == 0 {
			return []string{}, nil
		}
		return answer.ContainerResponses[0].DeviceIDs, nil
	})
}

// measure counts failed calls but times only those that were answered.
func measure(n int, call func(number int) (any, error)) timing {
	result := timing{Calls: max(n, 1)}
	var took []int64
	for number := range result.Calls {
		began := time.Now()
		answer, err := call(number)
		elapsed := time.Since(began).Microseconds()
		if err != nil {
			if result.Errors++; result.Errors == 1 {
				result.Error = err.Error()
			}
			continue
		}
		if took = append(took, elapsed); len(took) == 1 {
			result.First = answer
		}
	}
	if len(took) == 0 {
		return result
	}
	slices.Sort(took)
	at := func(percent int) int64 { return took[(len(took)*percent+99)/100-1] }
	result.P50, result.P90, result.P99, result.Max = at(50), at(90), at(99), took[len(took)-1]
	return result
}

// restart drops every connection and socket at once, as a kubelet does that dies and comes back.
func (k *fakeKubelet) restart(_ context.Context, args json.RawMessage) (any, error) {
	var in callQuery
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, err
	}
	k.stop()
	time.Sleep(time.Duration(in.DownMS) * time.Millisecond)
	return struct{}{}, k.start()
}
