package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
	podName      = "protobuf"
	podLabel     = "made=protobuf"
)

// inProtobuf does what controllers do with pods, once with protobuf preferred in answers and JSON taken, once with
// protobuf alone; bodies are protobuf, as typed clients send them unless told otherwise. The media type of each answer
// goes to stdout.
func inProtobuf(ctx context.Context, config *rest.Config, namespace string) error {
	out := newOutput(os.Stdout)
	for _, accept := range []string{protobufType + "," + jsonType, protobufType} {
		answers, err := steps(ctx, config, namespace, accept)
		if err != nil {
			return fmt.Errorf("accepting %s: %w", accept, err)
		}
		out.write(map[string]any{"accept": accept, "answers": answers})
	}
	return nil
}

func steps(ctx context.Context, config *rest.Config, namespace, accept string) (map[string]string, error) {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	own, counts := counted(config)
	own.ContentType = protobufType
	own.AcceptContentTypes = accept
	api, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, err
	}
	answers := map[string]string{}
	for _, step := range []struct {
		name string
		do   func(context.Context, kubernetes.Interface, string) error
	}{
		{"create", createPod}, {"get", getPod}, {"list", listPods}, {"watch", watchPods},
		{"update", updatePod}, {"status", updateStatus}, {"apply", applyPod}, {"page", pagePods}, {"evict", evictPod},
		{"errors", refusals}, {"delete", deletePod}, {"collection", deleteAll},
	} {
		if err := step.do(limited, api, namespace); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		answers[step.name] = counts.snapshot().Answers
	}
	return answers, nil
}

func createPod(ctx context.Context, api kubernetes.Interface, namespace string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName, Labels: map[string]string{"made": "protobuf"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example/web:1"}}},
	}
	made, err := api.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	return checked(made, err)
}

func getPod(ctx context.Context, api kubernetes.Interface, namespace string) error {
	found, err := api.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
	return checked(found, err)
}

func listPods(ctx context.Context, api kubernetes.Interface, namespace string) error {
	list, err := api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: podLabel})
	if err != nil {
		return err
	}
	if len(list.Items) != 1 || number(list.ResourceVersion) == 0 {
		return fmt.Errorf("%d pods at version %q, not one", len(list.Items), list.ResourceVersion)
	}
	return checked(&list.Items[0], nil)
}

// watchPods takes the state as ADDED, then a change that is made meanwhile.
func watchPods(ctx context.Context, api kubernetes.Interface, namespace string) error {
	stream, err := api.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: podLabel})
	if err != nil {
		return err
	}
	defer stream.Stop()
	changed := false
	for told := range stream.ResultChan() {
		pod, ok := told.Object.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("%s of a %T: %v", told.Type, told.Object, told.Object)
		}
		if pod.Annotations["changed"] == "yes" {
			return checked(pod, nil)
		}
		if !changed {
			if err := annotate(ctx, api, namespace); err != nil {
				return err
			}
			changed = true
		}
	}
	return errors.New("the watch ended before the change came")
}

func annotate(ctx context.Context, api kubernetes.Interface, namespace string) error {
	change := []byte(`{"metadata":{"annotations":{"changed":"yes"}}}`)
	_, err := api.CoreV1().Pods(namespace).Patch(ctx, podName, types.MergePatchType, change, metav1.PatchOptions{})
	return err
}

// updatePod writes a label as a controller does: again from the newest state after a conflict.
func updatePod(ctx context.Context, api kubernetes.Interface, namespace string) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pod, err := api.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Labels["updated"] = "yes"
		written, err := api.CoreV1().Pods(namespace).Update(ctx, pod, metav1.UpdateOptions{})
		if err == nil && (number(written.ResourceVersion) <= number(pod.ResourceVersion) || written.Labels["updated"] != "yes") {
			return fmt.Errorf("written at %s over %s with %v", written.ResourceVersion, pod.ResourceVersion, written.Labels)
		}
		return checked(written, err)
	})
}

func updateStatus(ctx context.Context, api kubernetes.Interface, namespace string) error {
	change := []byte(`{"status":{"conditions":[{"type":"example.com/Seen","status":"True"}]}}`)
	pod, err := api.CoreV1().Pods(namespace).Patch(ctx, podName, types.StrategicMergePatchType, change, metav1.PatchOptions{}, "status")
	return checked(pod, err)
}

func applyPod(ctx context.Context, api kubernetes.Interface, namespace string) error {
	set := applycorev1.Pod(podName, namespace).WithAnnotations(map[string]string{"applied": "yes"})
	pod, err := api.CoreV1().Pods(namespace).Apply(ctx, set, metav1.ApplyOptions{FieldManager: "clients", Force: true})
	if err == nil && pod.Annotations["applied"] != "yes" {
		return fmt.Errorf("applied: %v", pod.Annotations)
	}
	return checked(pod, err)
}

// pagePods walks all pods of the fleet two at a time.
func pagePods(ctx context.Context, api kubernetes.Interface, _ string) error {
	options, seen, last := metav1.ListOptions{Limit: 2}, 0, ""
	for {
		page, err := api.CoreV1().Pods("").List(ctx, options)
		if err != nil {
			return err
		}
		for _, pod := range page.Items {
			key := pod.Namespace + "/" + pod.Name
			if key <= last {
				return fmt.Errorf("%s after %s", key, last)
			}
			last, seen = key, seen+1
		}
		if options.Continue = page.Continue; options.Continue == "" {
			if seen == 0 {
				return errors.New("no pods")
			}
			return nil
		}
	}
}

// refusals must reach the client as what they are.
func refusals(ctx context.Context, api kubernetes.Interface, namespace string) error {
	pods := api.CoreV1().Pods(namespace)
	if _, err := pods.Get(ctx, "none", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("get of nothing: %w", err)
	}
	pod, err := pods.Get(ctx, podName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pod.ResourceVersion = "1"
	if _, err := pods.Update(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		return fmt.Errorf("update of an old version: %w", err)
	}
	if _, err := pods.List(ctx, metav1.ListOptions{Continue: "x"}); !apierrors.IsBadRequest(err) {
		return fmt.Errorf("a continue token of nobody: %w", err)
	}
	stream, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: "1"})
	if err != nil {
		return err
	}
	defer stream.Stop()
	for told := range stream.ResultChan() {
		if told.Type == watch.Error && apierrors.IsResourceExpired(apierrors.FromObject(told.Object)) {
			return nil
		}
		return fmt.Errorf("a watch from version 1: %s %v", told.Type, told.Object)
	}
	return errors.New("a watch from version 1 ended without an event")
}

func deleteAll(ctx context.Context, api kubernetes.Interface, namespace string) error {
	none := int64(0)
	gone := func(ctx context.Context) (bool, error) { // a deletion is told in two steps
		_, err := api.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}
	if err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, gone); err != nil {
		return err
	}
	if err := createPod(ctx, api, namespace); err != nil {
		return err
	}
	selected := metav1.ListOptions{LabelSelector: podLabel}
	if err := api.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &none}, selected); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, gone)
}

func evictPod(ctx context.Context, api kubernetes.Interface, namespace string) error {
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: podName, Namespace: namespace},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	}
	return api.PolicyV1().Evictions(namespace).Evict(ctx, eviction)
}

// deletePod deletes with a precondition, which must be the member's there, and with one that is wrong.
func deletePod(ctx context.Context, api kubernetes.Interface, namespace string) error {
	pod, err := api.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	none, other := int64(0), types.UID("00000000-0000-0000-0000-000000000000")
	options := metav1.DeleteOptions{GracePeriodSeconds: &none, Preconditions: &metav1.Preconditions{UID: &other}}
	if err := api.CoreV1().Pods(namespace).Delete(ctx, podName, options); !apierrors.IsConflict(err) {
		return fmt.Errorf("with another uid: %w, not a conflict", err)
	}
	options.Preconditions.UID = &pod.UID
	return api.CoreV1().Pods(namespace).Delete(ctx, podName, options)
}

// checked refuses a pod without what every answer of the front has.
func checked(pod *corev1.Pod, err error) error {
	if err != nil {
		return err
	}
	if pod.Name != podName || number(pod.ResourceVersion) == 0 || pod.Annotations["reclock.dev/cluster"] == "" {
		return fmt.Errorf("unexpected: pod %q at version %q with %v", pod.Name, pod.ResourceVersion, pod.Annotations)
	}
	return nil
}
