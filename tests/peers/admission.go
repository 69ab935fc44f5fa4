// Commands that change the pods or the life of `peer kubelet`.
package main

import (
	"context"
	"encoding/json"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

type admitted struct {
	UID      types.UID `json:"uid"`
	Admitted bool      `json:"admitted"`
	Reason   string    `json:"reason"`
	Message  string    `json:"message"`
}

func (k *kubelet) admit(_ context.Context, args json.RawMessage) (any, error) {
	var in struct {
		Pod podSpec `json:"pod"`
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, err
	}
	pod := in.Pod.pod()
	k.admission.Lock()
	defer k.admission.Unlock()
	now := k.current.Load()
	if now == nil {
		return nil, errDown
	}
	k.pods.add(pod)
	return k.judge(now, pod), nil
}

// judge has a pod that is already in the list admitted, since the device manager takes back at once
// what a pod outside the list holds, and drops it when it was refused.
func (k *kubelet) judge(l *life, pod *v1.Pod) admitted {
	result := l.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	if !result.Admit {
		k.pods.remove(pod.UID)
	}
	return admitted{pod.UID, result.Admit, result.Reason, result.Message}
}

func (k *kubelet) delete(_ context.Context, args json.RawMessage) (any, error) {
	var in struct {
		UID types.UID `json:"uid"`
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, err
	}
	k.pods.remove(in.UID)
	return struct{}{}, nil
}

// settle ends the start of a kubelet; with readmit every pod is judged anew before the sources are
// ready, as on a node, and those that do not pass are dropped and returned.
func (k *kubelet) settle(l *life, readmit bool) []admitted {
	refused := []admitted{}
	if readmit {
		for _, pod := range k.pods.GetPods() {
			if verdict := k.judge(l, pod); !verdict.Admitted {
				refused = append(refused, verdict)
			}
		}
	}
	l.sourcesReady.Store(true)
	return refused
}

// restart stops and starts the managers within this process, so kubelet.sock is gone while they are
// down; a kubelet that dies leaves it in place, and so does killing this process.
func (k *kubelet) restart(_ context.Context, args json.RawMessage) (any, error) {
	var in struct {
		DownMS  int  `json:"down_ms"`
		Readmit bool `json:"readmit"`
	}
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, err
	}
	k.admission.Lock()
	defer k.admission.Unlock()
	if old := k.current.Swap(nil); old != nil {
		if err := old.stop(); err != nil {
			return nil, err
		}
	}
	time.Sleep(time.Duration(in.DownMS) * time.Millisecond)
	l, err := k.start()
	if err != nil {
		return nil, err
	}
	return map[string]any{"refused": k.settle(l, in.Readmit)}, nil
}
