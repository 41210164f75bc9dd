// Stock client-go clients that follow the pods of one namespace through the front and say what they were told.
//
// "follow" writes one JSON line an event to stdout, answers each line "report" on stdin with one line
// {"report": …}, and ends when stdin does. "protobuf" does all that typed clients do, in protobuf,
// and writes two JSON lines. "manager" runs an operator by controller-runtime until stdin ends. "types" prints what the aggregator's protobuf.json holds; "samples" prints
// made-up objects in both encodings, and "compare" tells which of them were translated wrongly. Exit 1 with the reason on stderr when something could not be done.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// How long the clients may take to have the state as it is at the start.
const syncLimit = 60 * time.Second

func main() {
	// A set of our own: controller-runtime puts a -kubeconfig into the common one.
	flags := flag.NewFlagSet(os.Args[0], flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "the front's kubeconfig")
	namespace := flags.String("namespace", "default", "whose pods are followed")
	mode := flags.String("mode", "follow", "follow, protobuf, manager, types, samples or compare")
	klog.InitFlags(flags)        // -v=4 tells why client-go does what it does
	_ = flags.Parse(os.Args[1:]) // exits by itself
	if err := run(*mode, *kubeconfig, *namespace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(mode, kubeconfig, namespace string) error {
	switch mode {
	case "types":
		return writeTypes(os.Stdout)
	case "samples":
		return writeSamples(os.Stdout)
	case "compare":
		return compare(os.Stdin, os.Stdout)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	// The clients of one program share nothing: client-go's own limit would make them wait for each other.
	config.QPS, config.Burst = -1, 0
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch mode {
	case "follow":
		return follow(ctx, config, namespace)
	case "protobuf":
		return inProtobuf(ctx, config, namespace)
	case "manager":
		return manage(ctx, config, namespace)
	}
	return fmt.Errorf("-mode is follow, protobuf, manager, types, samples or compare, not %q", mode)
}

// follow starts every client, says {"ready": true} when all have the present state, then answers stdin.
func follow(ctx context.Context, config *rest.Config, namespace string) error {
	out := newOutput(os.Stdout)
	clients, err := startClients(ctx, config, namespace, out)
	if err != nil {
		return err
	}
	out.write(map[string]any{"ready": true})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if lines.Text() == "report" {
			out.report(clients)
		}
	}
	return lines.Err()
}
