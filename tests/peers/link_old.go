//go:build old

// Calls whose signatures differ between releases, as they were up to 1.33.
package main

import (
	_ "unsafe" // linkname

	cadvisorapi "github.com/google/cadvisor/info/v1"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	apisgrpc "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

// The exported constructor knows only the directory of a real node.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(string, []cadvisorapi.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

func newDevices(socket string, nodes []cadvisorapi.Node, store topologymanager.Store) (*devicemanager.ManagerImpl, error) {
	return newManagerImpl(socket, nodes, store)
}

func startDevices(
	m *devicemanager.ManagerImpl, pods func() []*v1.Pod, sources config.SourcesReady,
	containers containermap.ContainerMap, running sets.Set[string],
) error {
	return m.Start(pods, sources, containers, running)
}

func stopDevices(m *devicemanager.ManagerImpl) error { return m.Stop() }

func addHintProvider(t topologymanager.Manager, m *devicemanager.ManagerImpl) {
	t.AddHintProvider(m)
}

func runContainerOptions(m *devicemanager.ManagerImpl, pod *v1.Pod, c *v1.Container) (*devicemanager.DeviceRunContainerOptions, error) {
	return m.GetDeviceRunContainerOptions(pod, c)
}

func runPlugins(m pluginmanager.PluginManager, sources config.SourcesReady, done <-chan struct{}) {
	m.Run(sources, done)
}

func rateLimit() grpc.ServerOption {
	return apisgrpc.WithRateLimiter(
		"podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens)
}

func podResourcesServer(providers podresources.PodResourcesProviders) podresourcesapi.PodResourcesListerServer {
	return podresources.NewV1PodResourcesServer(providers)
}

func allocateRequest(ids []string) *pluginapi.AllocateRequest {
	return &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIDs: ids}},
	}
}

func size(list *pluginapi.ListAndWatchResponse) int { return list.Size() }
