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
	if !in.Pod.Static && !now.sourcesReady.Load() {
		return nil, errAPIAway
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

// finish lets a pod come to its end: known until it is deleted, but active no more.
func (k *kubelet) finish(_ context.Context, args json.RawMessage) (any, error) {
	_, pod, _, err := k.subject(args)
	if err != nil {
		return nil, err
	}
	k.pods.finish(pod.UID)
	return struct{}{}, nil
}

// settle ends the start of a kubelet; with readmit every pod is judged anew before the sources are
// ready, as on a node, and those that do not pass are dropped and returned. While the API server is
// away the sources do not get ready.
func (k *kubelet) settle(l *life, how restarting) []admitted {
	refused := []admitted{}
	if how.Readmit {
		for _, pod := range k.pods.GetActivePods() {
			if verdict := k.judge(l, pod); !verdict.Admitted {
				refused = append(refused, verdict)
			}
		}
	}
	l.sourcesReady.Store(!how.APIAway)
	return refused
}

// apiBack lets the API server tell of its pods, one after another, and then of no more.
func (k *kubelet) apiBack(_ context.Context, args json.RawMessage) (any, error) {
	var how restarting
	if err := json.Unmarshal(args, &how); err != nil {
		return nil, err
	}
	k.admission.Lock()
	defer k.admission.Unlock()
	now := k.current.Load()
	if now == nil {
		return nil, errDown
	}
	refused := []admitted{}
	for pod, more := k.pods.next(); more; pod, more = k.pods.next() {
		if !how.Readmit || k.pods.isFinished(pod) {
			continue
		}
		if verdict := k.judge(now, pod); !verdict.Admitted {
			refused = append(refused, verdict)
		}
	}
	now.sourcesReady.Store(true)
	return map[string]any{"refused": refused}, nil
}

// What a start of the kubelet finds: how it treats the pods that ran before, and whether it learns of them.
type restarting struct {
	DownMS  int  `json:"down_ms"`
	Readmit bool `json:"readmit"`
	APIAway bool `json:"api_away"`
}

// restart stops and starts the managers within this process, so kubelet.sock is gone while they are
// down; a kubelet that dies leaves it in place, and so does killing this process.
func (k *kubelet) restart(_ context.Context, args json.RawMessage) (any, error) {
	var how restarting
	if err := json.Unmarshal(args, &how); err != nil {
		return nil, err
	}
	k.admission.Lock()
	defer k.admission.Unlock()
	if old := k.current.Swap(nil); old != nil {
		if err := old.stop(); err != nil {
			return nil, err
		}
	}
	time.Sleep(time.Duration(how.DownMS) * time.Millisecond)
	l, err := k.start(how.APIAway)
	if err != nil {
		return nil, err
	}
	return map[string]any{"refused": k.settle(l, how)}, nil
}
