// `peer kubelet`: the real device, topology and plugin managers of a kubelet, started and stopped as one.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

type kubeletOptions struct {
	dir, registry, podResources string
	policy, scope               string
	numa                        int
	pods                        string
	how                         restarting
}

// A life is one run of the kubelet, from its start to its stop.
type life struct {
	devices      *devicemanager.ManagerImpl
	topology     topologymanager.Manager
	podResources *grpc.Server
	sourcesReady atomic.Bool
	done         chan struct{}
}

// A kubelet has one life after another; its pods and the checkpoint in its directory outlast them.
type kubelet struct {
	options kubeletOptions
	session *session
	pods    podStore
	current atomic.Pointer[life]

	admission sync.Mutex // the kubelet admits one pod at a time, and none while it is down
}

var (
	errDown    = errors.New("the kubelet is down")
	errAPIAway = errors.New("the API server is away: only static pods come to the kubelet")
)

func kubeletCommand(flags *flag.FlagSet) func(context.Context, *session) error {
	var o kubeletOptions
	flags.StringVar(&o.dir, "dir", "", "device plugin directory, holding kubelet.sock")
	flags.StringVar(&o.registry, "registry", "", "directory the plugin watcher looks at (default DIR/../plugins_registry)")
	flags.StringVar(&o.podResources, "pod-resources", "", "PodResources socket (default DIR/../pod-resources/kubelet.sock)")
	flags.StringVar(&o.policy, "policy", "none", "topology manager policy")
	flags.StringVar(&o.scope, "scope", "container", "topology manager scope")
	flags.IntVar(&o.numa, "numa", 1, "number of NUMA nodes")
	flags.StringVar(&o.pods, "pods", "", "JSON file with the pods that ran here before this start")
	flags.BoolVar(&o.how.Readmit, "readmit", false, "judge those pods anew and drop what is refused")
	flags.BoolVar(&o.how.APIAway, "api-away", false, "know the static ones of those pods alone, and no source is ready")
	return func(ctx context.Context, s *session) error { return runKubelet(ctx, s, o) }
}

func runKubelet(ctx context.Context, s *session, o kubeletOptions) error {
	dir, err := filepath.Abs(o.dir)
	if err != nil || o.dir == "" {
		return errors.Join(errors.New("--dir is needed"), err)
	}
	o.dir = dir
	if o.registry == "" {
		o.registry = filepath.Join(filepath.Dir(dir), "plugins_registry")
	}
	if o.podResources == "" {
		o.podResources = filepath.Join(filepath.Dir(dir), "pod-resources", "kubelet.sock")
	}
	// The watcher would make it too, but only some time after we have said that we are ready.
	if err := os.MkdirAll(o.registry, 0o750); err != nil {
		return err
	}
	k := &kubelet{options: o, session: s}
	if err := k.loadPods(); err != nil {
		return err
	}
	started, err := k.start(o.how.APIAway)
	if err != nil {
		return err
	}
	s.emit(map[string]any{
		"event": "ready", "dir": o.dir, "pod_resources": o.podResources, "registry": o.registry,
		"refused": k.settle(started, o.how),
	})
	err = s.serve(ctx, k.handlers())
	if last := k.current.Load(); last != nil {
		err = errors.Join(err, last.stop())
	}
	return err
}

func (k *kubelet) loadPods() error {
	if k.options.pods == "" {
		return nil
	}
	text, err := os.ReadFile(k.options.pods)
	if err != nil {
		return err
	}
	var specs []podSpec
	if err := json.Unmarshal(text, &specs); err != nil {
		return err
	}
	for _, spec := range specs {
		pod := spec.pod()
		k.pods.add(pod)
		if spec.Finished {
			k.pods.finish(pod.UID)
		}
	}
	return nil
}

// start leaves the sources unready, as a kubelet that has not yet seen its pods.
func (k *kubelet) start(apiAway bool) (*life, error) {
	if apiAway {
		k.pods.loseAPI()
	} else {
		k.pods.findAPI()
	}
	var nodes []cadvisorapi.Node
	for id := range k.options.numa {
		nodes = append(nodes, cadvisorapi.Node{Id: id})
	}
	topology, err := topologymanager.NewManager(nodes, k.options.policy, k.options.scope, nil)
	if err != nil {
		return nil, err
	}
	devices, err := newDevices(filepath.Join(k.options.dir, "kubelet.sock"), nodes, topology)
	if err != nil {
		return nil, err
	}
	addHintProvider(topology, devices)
	l := &life{devices: devices, topology: topology, done: make(chan struct{})}
	sources := config.NewSourcesReady(func(sets.Set[string]) bool { return l.sourcesReady.Load() })
	containers, running := k.pods.running()
	if err := startDevices(devices, k.pods.GetActivePods, sources, containers, running); err != nil {
		return nil, err
	}
	plugins := pluginmanager.NewPluginManager(k.options.registry, &record.FakeRecorder{})
	plugins.AddHandler("DevicePlugin", devices.GetWatcherHandler())
	go runPlugins(plugins, sources, l.done)
	l.podResources, err = servePodResources(k.options.podResources, &k.pods, devices)
	if err != nil {
		return nil, errors.Join(err, l.stop())
	}
	go k.reportUpdates(l)
	k.current.Store(l)
	return l, nil
}

// reportUpdates tells which pods the device manager wants a new status for.
func (k *kubelet) reportUpdates(l *life) {
	for {
		select {
		case update := <-l.devices.Updates():
			k.session.emit(map[string]any{"event": "pod_status", "uids": update.PodUIDs, "t_ns": time.Now().UnixNano()})
		case <-l.done:
			return
		}
	}
}

func (l *life) stop() error {
	close(l.done)
	if l.podResources != nil {
		l.podResources.Stop()
	}
	if err := stopDevices(l.devices); err != nil {
		klog.ErrorS(err, "Device manager did not stop well")
		return err
	}
	return nil
}
