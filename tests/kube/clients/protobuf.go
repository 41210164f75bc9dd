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

// preferProtobuf does what controllers do with pods: bodies in protobuf (as typed clients send them unless told
// otherwise), protobuf preferred in answers, JSON taken. The media type of each answer goes to stdout.
func preferProtobuf(ctx context.Context, config *rest.Config, namespace string) error {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	own, counts := counted(config)
	own.ContentType = protobufType
	own.AcceptContentTypes = protobufType + "," + jsonType
	api, err := kubernetes.NewForConfig(own)
	if err != nil {
		return err
	}
	answers := map[string]string{}
	for _, step := range []struct {
		name string
		do   func(context.Context, kubernetes.Interface, string) error
	}{
		{"create", createPod}, {"get", getPod}, {"list", listPods}, {"watch", watchPods},
		{"update", updatePod}, {"evict", evictPod}, {"delete", deletePod},
	} {
		if err := step.do(limited, api, namespace); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		answers[step.name] = counts.snapshot().Answers
	}
	newOutput(os.Stdout).write(map[string]any{"answers": answers})
	return nil
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
