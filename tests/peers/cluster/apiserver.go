// `cluster kube-apiserver`: with what it needs beside it, all in the working directory.
package main

import (
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version/verflag"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

const (
	// Sockets of these names in the working directory: etcd takes no path, it wants HOST:PORT.
	etcdClients  = "etcd:1"
	etcdPeers    = "etcd:2"
	etcdDir      = "etcd"
	etcdPatience = time.Minute
	// Signs the tokens of service accounts; the controller manager wants it too.
	accountsKey = "service-accounts.key"
)

// runAPIServer runs the server with the flags of the command line and those that name its etcd and key.
func runAPIServer() int {
	command := apiserver.NewAPIServerCommand()
	command.SetArgs(append([]string{
		"--etcd-servers=unix://" + etcdClients,
		"--service-account-key-file=" + accountsKey,
		"--service-account-signing-key-file=" + accountsKey,
	}, os.Args[1:]...))
	serve := command.RunE
	command.RunE = func(command *cobra.Command, args []string) error {
		verflag.PrintAndExitIfRequested() // before anything is written
		if err := makeKey(accountsKey); err != nil {
			return err
		}
		etcd, err := startEtcd()
		if err != nil {
			return err
		}
		defer etcd.Close()
		return serve(command, args)
	}
	return cli.Run(command)
}

func startEtcd() (*embed.Etcd, error) {
	// A socket that a killed process left behind is in the way.
	for _, socket := range []string{etcdClients, etcdPeers} {
		if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
			return nil, err
		}
	}
	config := embed.NewConfig()
	config.Dir = etcdDir
	config.LogLevel = "warn"
	config.UnsafeNoFsync = true // the machine does not crash, only the process
	clients := []url.URL{{Scheme: "unix", Host: etcdClients}}
	peers := []url.URL{{Scheme: "unix", Host: etcdPeers}}
	config.ListenClientUrls, config.AdvertiseClientUrls = clients, clients
	config.ListenPeerUrls, config.AdvertisePeerUrls = peers, peers
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case <-time.After(etcdPatience):
		return nil, fmt.Errorf("etcd was not ready in %s", etcdPatience)
	}
}

func makeKey(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	return keyutil.WriteKey(path, key)
}
