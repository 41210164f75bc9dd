// Copies ConfigMaps of the host that are labelled examples.reclock.dev/copy=true to every cluster, those that join later
// included. A copy goes when its original goes or loses the label.
package main

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"reclock.dev/examples/front"
	pb "reclock.dev/examples/stubs/reclock/reconciler/v1"
	"reclock.dev/examples/worker"
)

const (
	label   = "examples.reclock.dev/copy"
	copyOf  = "examples.reclock.dev/copy-of-host"
	manager = "configmap-copier"
)

type copier struct{ fleet *front.Front }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	fleet, err := front.New()
	if err != nil {
		log.Fatal(err)
	}
	itself := &pb.Source_ForObject{ForObject: &pb.ForObject{}}
	register := &pb.Register{
		Controller:  "configmap-copier-go",
		MaxInFlight: 10,
		Scope:       pb.Scope_SCOPE_HOST,
		Sources: []*pb.Source{
			{Name: "configmap", Version: "v1", Resource: "configmaps", Scope: pb.Scope_SCOPE_HOST, To: itself},
			{Name: "cluster", Group: "reclock.dev", Version: "v1alpha1", Resource: "clusters", Scope: pb.Scope_SCOPE_HOST, To: itself},
		},
	}
	if err := worker.Run(ctx, register, (&copier{fleet}).reconcile); err != nil {
		log.Fatal(err)
	}
}

func (c *copier) reconcile(ctx context.Context, request *pb.Request) error {
	host, err := c.fleet.Cluster("")
	if err != nil {
		return err
	}
	if request.Source == "cluster" {
		return c.fill(ctx, request.Name)
	}
	original, err := host.Resource(front.ConfigMaps).Namespace(request.Namespace).Get(ctx, request.Name, metav1.GetOptions{})
	if err != nil && !errors.IsNotFound(err) {
		return err
	}
	wanted := err == nil && original.GetLabels()[label] == "true"
	clusters, err := host.Resource(front.Clusters).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, cluster := range clusters.Items {
		if wanted {
			err = c.copy(ctx, original, cluster.GetName())
		} else {
			err = c.remove(ctx, request.Namespace, request.Name, cluster.GetName())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill gives a cluster all copies.
func (c *copier) fill(ctx context.Context, name string) error {
	host, err := c.fleet.Cluster("")
	if err != nil {
		return err
	}
	if _, err = host.Resource(front.Clusters).Get(ctx, name, metav1.GetOptions{}); errors.IsNotFound(err) {
		return nil // it has left
	}
	originals, err := host.Resource(front.ConfigMaps).List(ctx, metav1.ListOptions{LabelSelector: label + "=true"})
	if err != nil {
		return err
	}
	for _, original := range originals.Items {
		if err := c.copy(ctx, &original, name); err != nil {
			return err
		}
	}
	return nil
}

func (c *copier) copy(ctx context.Context, original *unstructured.Unstructured, name string) error {
	cluster, err := c.fleet.Cluster(name)
	if err != nil {
		return err
	}
	data, _, _ := unstructured.NestedMap(original.Object, "data")
	made := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "data": data,
		"metadata": map[string]any{
			"name": original.GetName(), "namespace": original.GetNamespace(), "labels": map[string]any{copyOf: "true"},
		},
	}}
	options := metav1.ApplyOptions{FieldManager: manager, Force: true}
	configmaps := cluster.Resource(front.ConfigMaps).Namespace(original.GetNamespace())
	_, err = configmaps.Apply(ctx, original.GetName(), made, options)
	if errors.IsNotFound(err) {
		namespace := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": original.GetNamespace()},
		}}
		if _, err := cluster.Resource(front.Namespaces).Apply(ctx, original.GetNamespace(), namespace, options); err != nil {
			return err
		}
		_, err = configmaps.Apply(ctx, original.GetName(), made, options)
	}
	if err == nil {
		fmt.Printf("copied %s/%s to %s\n", original.GetNamespace(), original.GetName(), name)
	}
	return err
}

// remove deletes the copy, if there is one: never a ConfigMap that is the cluster's own.
func (c *copier) remove(ctx context.Context, namespace, name, clusterName string) error {
	cluster, err := c.fleet.Cluster(clusterName)
	if err != nil {
		return err
	}
	configmaps := cluster.Resource(front.ConfigMaps).Namespace(namespace)
	found, err := configmaps.Get(ctx, name, metav1.GetOptions{})
	if errors.IsNotFound(err) || (err == nil && found.GetLabels()[copyOf] != "true") {
		return nil
	}
	if err != nil {
		return err
	}
	uid := found.GetUID()
	if err := configmaps.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil {
		return err
	}
	fmt.Printf("removed %s/%s from %s\n", namespace, name, clusterName)
	return nil
}
