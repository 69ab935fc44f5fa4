// Command peer runs the kubelet's own device manager, or a measuring stand-in for it, as a test peer.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"k8s.io/klog/v2"
)

// A command sets its flags up on the flag set it is given and returns what to run once they are parsed.
var commands = map[string]func(*flag.FlagSet) func(context.Context, *session) error{
	"kubelet": kubeletCommand,
	"client":  clientCommand,
	"cdi":     cdiCommand,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: peer kubelet|client --dir DIRECTORY ... | peer cdi DIRECTORY NAME...")
		os.Exit(2)
	}
	flags := flag.NewFlagSet("peer "+os.Args[1], flag.ExitOnError)
	klog.InitFlags(flags)
	run := commands[os.Args[1]](flags)
	_ = flags.Parse(os.Args[2:])
	if err := run(context.Background(), newSession(os.Stdin, os.Stdout)); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}
