// Commands that ask `peer kubelet` what its device manager knows.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func (k *kubelet) handlers() map[string]handler {
	return map[string]handler{
		"admit":       k.admit,
		"allocations": allocations,
		"delete":      k.delete,
		"finish":      k.finish,
		"restart":     k.restart,
		"api_back":    k.apiBack,
		"capacity":    k.capacity,
		"devices":     k.devices,
		"run_options": k.runOptions,
		"health":      k.health,
	}
}

type podQuery struct {
	UID       types.UID `json:"uid"`
	Container string    `json:"container"`
}

// subject finds the pod that a query names, and the manager to ask about it.
func (k *kubelet) subject(args json.RawMessage) (*life, *v1.Pod, podQuery, error) {
	var in podQuery
	if err := json.Unmarshal(args, &in); err != nil {
		return nil, nil, in, err
	}
	now := k.current.Load()
	if now == nil {
		return nil, nil, in, errDown
	}
	pod, found := k.pods.find(func(pod *v1.Pod) bool { return pod.UID == in.UID })
	if !found {
		return nil, nil, in, fmt.Errorf("no pod with uid %s", in.UID)
	}
	return now, pod, in, nil
}

func (k *kubelet) capacity(context.Context, json.RawMessage) (any, error) {
	now := k.current.Load()
	if now == nil {
		return nil, errDown
	}
	type counts struct {
		Capacity    int64 `json:"capacity"`
		Allocatable int64 `json:"allocatable"`
	}
	capacity, allocatable, _ := now.devices.GetCapacity()
	all := map[v1.ResourceName]counts{}
	for name, amount := range capacity {
		healthy := allocatable[name]
		all[name] = counts{amount.Value(), healthy.Value()}
	}
	return all, nil
}

func (k *kubelet) devices(_ context.Context, args json.RawMessage) (any, error) {
	now, pod, _, err := k.subject(args)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string][]string{}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		held := map[string][]string{}
		for resource, devices := range now.devices.GetDevices(string(pod.UID), container.Name) {
			for id := range devices {
				held[resource] = append(held[resource], id)
			}
			slices.Sort(held[resource])
		}
		all[container.Name] = held
	}
	return all, nil
}

func (k *kubelet) health(_ context.Context, args json.RawMessage) (any, error) {
	now, pod, _, err := k.subject(args)
	if err != nil {
		return nil, err
	}
	status := pod.Status.DeepCopy()
	now.devices.UpdateAllocatedResourcesStatus(pod, status)
	all := map[v1.ResourceID]v1.ResourceHealthStatus{}
	for _, container := range status.ContainerStatuses {
		for _, resource := range container.AllocatedResourcesStatus {
			for _, device := range resource.Resources {
				all[device.ResourceID] = device.Health
			}
		}
	}
	return all, nil
}

func (k *kubelet) runOptions(_ context.Context, args json.RawMessage) (any, error) {
	now, pod, in, err := k.subject(args)
	if err != nil {
		return nil, err
	}
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	at := slices.IndexFunc(containers, func(c v1.Container) bool { return c.Name == in.Container })
	if at < 0 {
		return nil, fmt.Errorf("pod %s has no container %s", in.UID, in.Container)
	}
	options, err := runContainerOptions(now.devices, pod, &containers[at])
	if err != nil {
		return nil, err
	}
	env, annotations := map[string]string{}, map[string]string{}
	devices, mounts, cdi := [][]any{}, [][]any{}, []string{}
	if options != nil {
		for _, e := range options.Envs {
			env[e.Name] = e.Value
		}
		for _, a := range options.Annotations {
			annotations[a.Name] = a.Value
		}
		for _, d := range options.Devices {
			devices = append(devices, []any{d.PathOnHost, d.PathInContainer, d.Permissions})
		}
		for _, m := range options.Mounts {
			mounts = append(mounts, []any{m.HostPath, m.ContainerPath, m.ReadOnly})
		}
		for _, c := range options.CDIDevices {
			cdi = append(cdi, c.Name)
		}
	}
	return map[string]any{
		"env": env, "annotations": annotations, "devices": devices, "mounts": mounts, "cdi_devices": cdi,
	}, nil
}
