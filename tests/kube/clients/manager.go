package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// sizes keeps as many pods as a ConfigMap labelled app=sized asks for in data.size, and says in data.ready how many
// of them run: what most operators do, with the manager's own cache, queue, leader election and clients.
type sizes struct{ crclient.Client }

func (s *sizes) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var owner corev1.ConfigMap
	if err := s.Get(ctx, request.NamespacedName, &owner); err != nil {
		return ctrl.Result{}, crclient.IgnoreNotFound(err)
	}
	if owner.DeletionTimestamp != nil || owner.Labels["app"] != "sized" {
		return ctrl.Result{}, nil
	}
	size, err := strconv.Atoi(owner.Data["size"])
	if err != nil {
		return ctrl.Result{}, nil // nothing to do until it is corrected
	}
	var pods corev1.PodList
	if err := s.List(ctx, &pods, crclient.InNamespace(request.Namespace)); err != nil {
		return ctrl.Result{}, err
	}
	running := 0
	there := map[string]bool{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !metav1.IsControlledBy(pod, &owner) {
			continue
		}
		there[pod.Name] = true
		if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
			running++
		}
		var number int
		if _, err := fmt.Sscanf(pod.Name, owner.Name+"-%d", &number); err == nil && number >= size && pod.DeletionTimestamp == nil {
			if err := s.Delete(ctx, pod, crclient.Preconditions{UID: &pod.UID}); crclient.IgnoreNotFound(err) != nil {
				return ctrl.Result{}, err
			}
		}
	}
	for number := 0; number < size; number++ {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", owner.Name, number), Namespace: owner.Namespace}}
		if there[pod.Name] {
			continue
		}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: "example/web:1"}}
		if err := ctrl.SetControllerReference(&owner, pod, scheme.Scheme); err != nil {
			return ctrl.Result{}, err
		}
		// The cache may lag behind our own creates: that a name is taken is then no news.
		if err := s.Create(ctx, pod); err != nil && !apierrors.IsAlreadyExists(err) {
			return ctrl.Result{}, err
		}
	}
	if told := strconv.Itoa(running); owner.Data["ready"] != told {
		owner.Data["ready"] = told
		return ctrl.Result{}, s.Update(ctx, &owner) // a conflict comes back through the queue
	}
	return ctrl.Result{}, nil
}

// manage runs the manager until stdin ends; it says {"ready": true} when it leads and its caches are in sync.
func manage(ctx context.Context, config *rest.Config, namespace string) error {
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{}))
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Cache:                         cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics:                       server.Options{BindAddress: "0"},
		LeaderElection:                true,
		LeaderElectionID:              "sizes.example.com",
		LeaderElectionNamespace:       namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(manager).For(&corev1.ConfigMap{}).Owns(&corev1.Pod{}).Complete(&sizes{manager.GetClient()}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		<-manager.Elected()
		if manager.GetCache().WaitForCacheSync(ctx) {
			newOutput(os.Stdout).write(map[string]any{"ready": true})
		}
	}()
	go func() {
		defer cancel()
		for buffer := make([]byte, 64); ; {
			if _, err := os.Stdin.Read(buffer); err != nil {
				return // the test has ended
			}
		}
	}()
	return manager.Start(ctx)
}
