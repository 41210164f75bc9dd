package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	jsonType     = "application/json"
	protobufType = "application/vnd.kubernetes.protobuf"
	podName      = "protobuf"
	podLabel     = "made=protobuf"
)

// preferProtobuf reads as Kubernetes' own controllers do: protobuf is the client's content type and preferred in
// answers, JSON is taken. The pod that is read is written by a second client, in JSON. The media type of each
// answer goes to stdout.
func preferProtobuf(ctx context.Context, config *rest.Config, namespace string) error {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	own, counts := counted(config)
	own.ContentType = protobufType
	own.AcceptContentTypes = protobufType + "," + jsonType
	reader, err := kubernetes.NewForConfig(own)
	if err != nil {
		return err
	}
	plain := rest.CopyConfig(config)
	plain.ContentType = jsonType
	writer, err := kubernetes.NewForConfig(plain)
	if err != nil {
		return err
	}
	if err := createPod(limited, writer, namespace); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	answers := map[string]string{}
	for name, read := range map[string]func() error{
		"get":   func() error { return getPod(limited, reader, namespace) },
		"list":  func() error { return listPods(limited, reader, namespace) },
		"watch": func() error { return watchPods(limited, reader, writer, namespace) },
	} {
		if err := read(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		answers[name] = counts.snapshot().Answers
	}
	newOutput(os.Stdout).write(map[string]any{"answers": answers})
	return nil
}

func createPod(ctx context.Context, writer kubernetes.Interface, namespace string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName, Labels: map[string]string{"made": "protobuf"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example/web:1"}}},
	}
	made, err := writer.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	return checked(made, err)
}

func getPod(ctx context.Context, reader kubernetes.Interface, namespace string) error {
	found, err := reader.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
	return checked(found, err)
}

func listPods(ctx context.Context, reader kubernetes.Interface, namespace string) error {
	list, err := reader.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: podLabel})
	if err != nil {
		return err
	}
	if len(list.Items) != 1 || number(list.ResourceVersion) == 0 {
		return fmt.Errorf("%d pods at version %q, not one", len(list.Items), list.ResourceVersion)
	}
	return checked(&list.Items[0], nil)
}

// watchPods takes the state as ADDED, then a change that is made meanwhile.
func watchPods(ctx context.Context, reader, writer kubernetes.Interface, namespace string) error {
	stream, err := reader.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{LabelSelector: podLabel})
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
			if err := annotate(ctx, writer, namespace); err != nil {
				return err
			}
			changed = true
		}
	}
	return errors.New("the watch ended before the change came")
}

func annotate(ctx context.Context, writer kubernetes.Interface, namespace string) error {
	change := []byte(`{"metadata":{"annotations":{"changed":"yes"}}}`)
	_, err := writer.CoreV1().Pods(namespace).Patch(ctx, podName, types.MergePatchType, change, metav1.PatchOptions{})
	return err
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
