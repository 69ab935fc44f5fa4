// Command cluster is Kubernetes in one binary: API server with its etcd, controllers, scheduler, kubelet, kubectl.
//
// The command is the name that it is called by, or else its first argument. Before it may stand the word
// "attached": it ends then when its standard input does, so at the latest when the process that holds the
// other end dies.
package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // what kubeconfigs may ask for
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() int{
	"kube-apiserver":          runAPIServer,
	"kube-controller-manager": func() int { return cli.Run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 runKubectl,
}

func runKubectl() int {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // ends the process
	}
	return 0
}

func main() {
	if run, known := commands[filepath.Base(os.Args[0])]; known {
		os.Exit(run())
	}
	os.Args = os.Args[1:]
	if len(os.Args) > 0 && os.Args[0] == "attached" {
		os.Args = os.Args[1:]
		go endWithInput()
	}
	if len(os.Args) == 0 || commands[os.Args[0]] == nil {
		known := slices.Sorted(maps.Keys(commands))
		fmt.Fprintf(os.Stderr, "usage: cluster [attached] %s ...\n", strings.Join(known, "|"))
		os.Exit(2)
	}
	os.Exit(commands[os.Args[0]]())
}

func endWithInput() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Fprintln(os.Stderr, "cluster: standard input ended")
	os.Exit(1)
}
