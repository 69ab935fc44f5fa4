// `peer client`: a kubelet made of grpc-go alone that timestamps what device plugins tell it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper"
)

type plugin struct {
	resource string
	conn     *grpc.ClientConn
	client   api.DevicePluginClient

	mu     sync.Mutex
	health map[string]string // by device ID, from the newest list
}

type fakeKubelet struct {
	api.UnimplementedRegistrationServer
	dir     string
	session *session
	server  *grpc.Server

	mu      sync.Mutex
	plugins map[string]*plugin // by resource: the newest registration
	conns   []*grpc.ClientConn // of every registration, replaced ones too
}

func clientCommand(flags *flag.FlagSet) func(context.Context, *session) error {
	dir := flags.String("dir", "", "device plugin directory, holding kubelet.sock")
	return func(ctx context.Context, s *session) error {
		absolute, err := filepath.Abs(*dir)
		if err != nil || *dir == "" {
			return errors.Join(errors.New("--dir is needed"), err)
		}
		k := &fakeKubelet{dir: absolute, session: s, plugins: map[string]*plugin{}}
		if err := k.start(); err != nil {
			return err
		}
		err = s.serve(ctx, k.handlers())
		k.stop()
		return err
	}
}

// start clears the sockets of former lives away and serves a new kubelet.sock.
func (k *fakeKubelet) start() error {
	if err := os.MkdirAll(k.dir, 0o750); err != nil {
		return err
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type()&os.ModeSocket != 0 {
			if err := os.Remove(filepath.Join(k.dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	listener, err := net.Listen("unix", filepath.Join(k.dir, "kubelet.sock"))
	if err != nil {
		return err
	}
	k.server = grpc.NewServer()
	api.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
	k.session.emit(map[string]any{"event": "ready", "dir": k.dir, "t_ns": time.Now().UnixNano()})
	return nil
}

func (k *fakeKubelet) stop() {
	k.mu.Lock()
	conns := k.conns
	k.conns, k.plugins = nil, map[string]*plugin{}
	k.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close()
	}
	k.server.Stop()
}

// Register answers only after the plugin was dialled and asked for its options, as the kubelet does.
func (k *fakeKubelet) Register(ctx context.Context, r *api.RegisterRequest) (*api.Empty, error) {
	began := time.Now()
	if !slices.Contains(api.SupportedVersions[:], r.Version) {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q",
			r.Version, api.SupportedVersions)
	}
	if !helper.IsExtendedResourceName(v1.ResourceName(r.ResourceName)) {
		return nil, fmt.Errorf("the ResourceName %q is invalid", r.ResourceName)
	}
	conn, err := dial(ctx, filepath.Join(k.dir, r.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	p := &plugin{resource: r.ResourceName, conn: conn, client: api.NewDevicePluginClient(conn)}
	options, err := p.client.GetDevicePluginOptions(ctx, &api.Empty{})
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	k.mu.Lock()
	k.plugins[r.ResourceName] = p
	k.conns = append(k.conns, conn)
	k.mu.Unlock()
	k.session.emit(map[string]any{
		"event": "register", "resource": r.ResourceName, "endpoint": r.Endpoint, "t_ns": began.UnixNano(),
		"pre_start": options.PreStartRequired, "preferred": options.GetPreferredAllocationAvailable,
	})
	go k.watch(p)
	return &api.Empty{}, nil
}

// dial keeps to the kubelet's options: they fix the headers, the wait for the socket and the 4 MiB limit.
func dial(ctx context.Context, socket string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return grpc.DialContext(ctx, socket,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithBlock(),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}),
	)
}

// watch reports each list as it comes, and the end of the stream, which is final.
func (k *fakeKubelet) watch(p *plugin) {
	stream, err := p.client.ListAndWatch(context.Background(), &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			k.report(p, list, time.Now())
		}
	}
	at := time.Now().UnixNano()
	p.take(nil)
	_ = p.conn.Close()
	k.session.emit(map[string]any{"event": "end", "resource": p.resource, "t_ns": at, "error": err.Error()})
}

func (k *fakeKubelet) report(p *plugin, list *api.ListAndWatchResponse, at time.Time) {
	health := make(map[string]string, len(list.Devices))
	unhealthy := 0
	for _, device := range list.Devices {
		health[device.ID] = device.Health
		if device.Health != api.Healthy {
			unhealthy++
		}
	}
	p.take(health)
	k.session.emit(map[string]any{
		"event": "list", "resource": p.resource, "t_ns": at.UnixNano(),
		"devices": len(list.Devices), "unhealthy": unhealthy, "bytes": size(list),
	})
}

func (p *plugin) take(health map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health = health
}
