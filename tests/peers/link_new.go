//go:build !old

// Calls whose signatures differ between releases, as they are from 1.35 (and podresources 1.34) on.
package main

import (
	"context"
	_ "unsafe" // linkname

	cadvisorapi "github.com/google/cadvisor/info/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
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
func newManagerImpl(klog.Logger, string, []cadvisorapi.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

func newDevices(socket string, nodes []cadvisorapi.Node, store topologymanager.Store) (*devicemanager.ManagerImpl, error) {
	return newManagerImpl(klog.Background(), socket, nodes, store)
}

func startDevices(
	m *devicemanager.ManagerImpl, pods func() []*v1.Pod, sources config.SourcesReady,
	containers containermap.ContainerMap, running sets.Set[string],
) error {
	return m.Start(klog.Background(), pods, sources, containers, running)
}

func stopDevices(m *devicemanager.ManagerImpl) error { return m.Stop(klog.Background()) }

func addHintProvider(t topologymanager.Manager, m *devicemanager.ManagerImpl) {
	t.AddHintProvider(klog.Background(), m)
}

func runContainerOptions(m *devicemanager.ManagerImpl, pod *v1.Pod, c *v1.Container) (*devicemanager.DeviceRunContainerOptions, error) {
	return m.GetDeviceRunContainerOptions(context.Background(), pod, c)
}

func runPlugins(m pluginmanager.PluginManager, sources config.SourcesReady, done <-chan struct{}) {
	m.Run(context.Background(), sources, done)
}

func rateLimit() grpc.ServerOption {
	return apisgrpc.WithRateLimiter(
		context.Background(), "podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens)
}

func podResourcesServer(providers podresources.PodResourcesProviders) podresourcesapi.PodResourcesListerServer {
	return podresources.NewV1PodResourcesServer(context.Background(), providers)
}

func allocateRequest(ids []string) *pluginapi.AllocateRequest {
	return &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
	}
}

func size(list *pluginapi.ListAndWatchResponse) int { return proto.Size(list) }
