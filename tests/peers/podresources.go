// The PodResources server of the kubelet with its rate limit, fed by the device manager.
package main

import (
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

func servePodResources(socket string, pods podresources.PodsProvider, devices *devicemanager.ManagerImpl) (*grpc.Server, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return nil, err
	}
	// A killed kubelet leaves its socket behind, and the next one takes its place.
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(rateLimit())
	api.RegisterPodResourcesListerServer(server, podResourcesServer(podresources.PodResourcesProviders{
		Pods:             pods,
		Devices:          deviceLister{devices},
		Cpus:             nothing{},
		Memory:           nothing{},
		DynamicResources: nothing{},
	}))
	go func() {
		if err := server.Serve(listener); err != nil {
			klog.ErrorS(err, "PodResources server ended")
		}
	}()
	return server, nil
}

// deviceLister translates as the container manager does: one entry per device and NUMA node.
type deviceLister struct {
	devices *devicemanager.ManagerImpl
}

func (d deviceLister) UpdateAllocatedDevices() { d.devices.UpdateAllocatedDevices() }

func (d deviceLister) GetDevices(uid, container string) []*api.ContainerDevices {
	return containerDevices(d.devices.GetDevices(uid, container))
}

func (d deviceLister) GetAllocatableDevices() []*api.ContainerDevices {
	return containerDevices(d.devices.GetAllocatableDevices())
}

func containerDevices(resources devicemanager.ResourceDeviceInstances) []*api.ContainerDevices {
	var all []*api.ContainerDevices
	for resource, devices := range resources {
		for id, device := range devices {
			one := func(topology *api.TopologyInfo) {
				all = append(all, &api.ContainerDevices{
					ResourceName: resource, DeviceIds: []string{id}, Topology: topology,
				})
			}
			if device.Topology == nil {
				one(nil)
				continue
			}
			for _, node := range device.Topology.Nodes {
				one(&api.TopologyInfo{Nodes: []*api.NUMANode{{ID: node.ID}}})
			}
		}
	}
	return all
}

// nothing provides the CPUs, memory and dynamic resources that no pod here asks for.
type nothing struct{}

func (nothing) GetCPUs(string, string) []int64                                    { return nil }
func (nothing) GetAllocatableCPUs() []int64                                       { return nil }
func (nothing) GetMemory(string, string) []*api.ContainerMemory                   { return nil }
func (nothing) GetAllocatableMemory() []*api.ContainerMemory                      { return nil }
func (nothing) GetDynamicResources(*v1.Pod, *v1.Container) []*api.DynamicResource { return nil }
