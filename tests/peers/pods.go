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
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"
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
	Static     bool            `json:"static"` // from a file, not from the API server
	Finished   bool            `json:"finished"`
	Containers []containerSpec `json:"containers"`
}

func (p podSpec) pod() *v1.Pod {
	source := kubetypes.ApiserverSource
	if p.Static {
		source = kubetypes.FileSource
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: p.Name, Namespace: p.Namespace, UID: types.UID(p.UID),
		Annotations: map[string]string{kubetypes.ConfigSourceAnnotationKey: source},
	}}
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

// podStore satisfies podresources.PodsProvider; every pod in it but the finished ones counts as active.
type podStore struct {
	mu       sync.RWMutex
	pods     []*v1.Pod
	finished sets.Set[types.UID]
	beyond   []*v1.Pod // on the node, but the API server that would tell of them is away
}

func (s *podStore) add(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = append(s.pods, pod)
}

func (s *podStore) remove(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := func(pod *v1.Pod) bool { return pod.UID == uid }
	s.pods, s.beyond = slices.DeleteFunc(s.pods, gone), slices.DeleteFunc(s.beyond, gone)
	s.finished.Delete(uid)
}

func (s *podStore) finish(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished == nil {
		s.finished = sets.New[types.UID]()
	}
	s.finished.Insert(uid)
}

// loseAPI leaves a kubelet that starts with the pods that it reads from files.
func (s *podStore) loseAPI() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beyond = append(s.beyond, slices.DeleteFunc(slices.Clone(s.pods), kubetypes.IsStaticPod)...)
	s.pods = slices.DeleteFunc(s.pods, func(pod *v1.Pod) bool { return !kubetypes.IsStaticPod(pod) })
}

// findAPI gives a kubelet that starts every pod there is.
func (s *podStore) findAPI() {
	for _, more := s.next(); more; _, more = s.next() {
	}
}

// next takes one pod in of which the API server tells when it is back.
func (s *podStore) next() (*v1.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.beyond) == 0 {
		return nil, false
	}
	pod := s.beyond[0]
	s.beyond, s.pods = s.beyond[1:], append(s.pods, pod)
	return pod, true
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

func (s *podStore) GetActivePods() []*v1.Pod {
	return slices.DeleteFunc(s.GetPods(), s.isFinished)
}

func (s *podStore) isFinished(pod *v1.Pod) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.finished.Has(pod.UID)
}

func (s *podStore) GetPodByName(namespace, name string) (*v1.Pod, bool) {
	return s.find(func(pod *v1.Pod) bool { return pod.Namespace == namespace && pod.Name == name })
}

// onNode lists the pods whose containers run, those too that this kubelet does not know yet.
func (s *podStore) onNode() []*v1.Pod {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Concat(s.pods, s.beyond)
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
	for _, pod := range slices.DeleteFunc(s.onNode(), s.isFinished) {
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
