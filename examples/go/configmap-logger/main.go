// Prints a line for every ConfigMap of every cluster, now and after each change: `<cluster> <namespace>/<name> <keys>`.
package main

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"sort"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"reclock.dev/examples/front"
	pb "reclock.dev/examples/stubs/reclock/reconciler/v1"
	"reclock.dev/examples/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	fleet, err := front.New()
	if err != nil {
		log.Fatal(err)
	}
	register := &pb.Register{
		Controller:  "configmap-logger-go",
		MaxInFlight: 10,
		Sources:     []*pb.Source{{Version: "v1", Resource: "configmaps", To: &pb.Source_ForObject{ForObject: &pb.ForObject{}}}},
	}
	err = worker.Run(ctx, register, func(ctx context.Context, request *pb.Request) error {
		cluster, err := fleet.Cluster(request.Cluster)
		if err != nil {
			return err
		}
		keys := "gone"
		found, err := cluster.Resource(front.ConfigMaps).Namespace(request.Namespace).Get(ctx, request.Name, metav1.GetOptions{})
		if err == nil {
			keys = keysOf(found)
		} else if !errors.IsNotFound(err) {
			return err
		}
		fmt.Printf("%s %s/%s %s\n", request.Cluster, request.Namespace, request.Name, keys)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

func keysOf(configmap *unstructured.Unstructured) string {
	data, _, _ := unstructured.NestedMap(configmap.Object, "data")
	keys := make([]string, 0, len(data))
	for key := range data {
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return "-"
	}
	sort.Strings(keys)
	return strings.Join(keys, ",")
}
