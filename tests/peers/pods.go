// Pods as the driver describes them, and the list of them that the kubelet's parts consult.
package main

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
)

type containerSpec struct {
	Name        string           `json:"name"`
	Limits      map[string]int64 `json:"limits"`
	Init        bool             `json:"init"`
	Restartable bool             `json:"restartable"`
}

type podSpec struct {
	Name       string          `json:"name"`
	Namespace  string          `json:"namespace"`
	UID        string          `json:"uid"`
	Containers []containerSpec `json:"containers"`
}

func (p podSpec) pod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: types.UID(p.UID)}}
	for _, spec := range p.Containers {
		amounts := v1.ResourceList{}
		for name, count := range spec.Limits {
			amounts[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
		}
		container := v1.Container{
			Name:      spec.Name,
			Resources: v1.ResourceRequirements{Limits: amounts, Requests: amounts.DeepCopy()},
		}
		if spec.Restartable {
			always := v1.ContainerRestartPolicyAlways
			container.RestartPolicy = &always
		}
		if spec.Init || spec.Restartable {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, container)
		} else {
			pod.Spec.Containers = append(pod.Spec.Containers, container)
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, v1.ContainerStatus{Name: spec.Name})
		}
	}
	return pod
}

// podStore satisfies podresources.PodsProvider; every pod in it counts as active.
type podStore struct {
	mu   sync.RWMutex
	pods []*v1.Pod
}

func (s *podStore) add(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = append(s.pods, pod)
}

func (s *podStore) remove(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = slices.DeleteFunc(s.pods, func(pod *v1.Pod) bool { return pod.UID == uid })
}

func (s *podStore) find(match func(*v1.Pod) bool) (*v1.Pod, bool) {
	for _, pod := range s.GetPods() {
		if match(pod) {
			return pod, true
		}
	}
	return nil, false
}

func (s *podStore) GetPods() []*v1.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.pods)
}

func (s *podStore) GetActivePods() []*v1.Pod { return s.GetPods() }

func (s *podStore) GetPodByName(namespace, name string) (*v1.Pod, bool) {
	return s.find(func(pod *v1.Pod) bool { return pod.Namespace == namespace && pod.Name == name })
}

// running tells a starting device manager which containers the runtime would report as running: all
// but the init containers, which are done by the time anybody restarts a kubelet here.
func (s *podStore) running() (containermap.ContainerMap, sets.Set[string]) {
	containers, ids := containermap.NewContainerMap(), sets.New[string]()
	note := func(pod *v1.Pod, name string) {
		id := string(pod.UID) + "/" + name
		containers.Add(string(pod.UID), name, id)
		ids.Insert(id)
	}
	for _, pod := range s.GetPods() {
		for _, container := range pod.Spec.InitContainers {
			if container.RestartPolicy != nil {
				note(pod, container.Name)
			}
		}
		for _, container := range pod.Spec.Containers {
			note(pod, container.Name)
		}
	}
	return containers, ids
}
