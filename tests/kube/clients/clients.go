package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	retry "k8s.io/client-go/tools/watch"
)

var pods = corev1.SchemeGroupVersion.WithResource("pods")

// client is one way to follow pods.
type client struct {
	name   string
	record *record
	counts *requests
	held   func() (map[string]string, error) // what client-go itself holds: uid -> version
}

func (c *client) summary() summary {
	store, err := c.held()
	c.record.mutex.Lock()
	defer c.record.mutex.Unlock()
	breaches := append([]string{}, c.record.breaches...)
	if err != nil {
		breaches = append(breaches, err.Error())
	}
	return summary{store, c.counts.snapshot(), breaches, c.record.events}
}

// starter makes one client; it returns when that client follows (a RetryWatcher) or has been started (an informer).
type starter func(ctx context.Context, config *rest.Config, namespace string, r *record) (*client, cache.InformerSynced, error)

// startClients starts every kind of client and returns when all have the present state.
func startClients(ctx context.Context, config *rest.Config, namespace string, out *output) ([]*client, error) {
	kinds := []struct {
		name  string
		start starter
	}{{"retry", startRetry}, {"typed", startTyped}, {"metadata", startMetadata}, {"dynamic", startDynamic}, {"protobuf", startProtobuf}}
	clients, synced := []*client{}, []cache.InformerSynced{}
	for _, kind := range kinds {
		own, counts := counted(config)
		r := newRecord(kind.name, out)
		c, done, err := kind.start(ctx, own, namespace, r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.name, err)
		}
		c.name, c.record, c.counts = kind.name, r, counts
		clients, synced = append(clients, c), append(synced, done)
	}
	limited, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	if !cache.WaitForCacheSync(limited.Done(), synced...) {
		return nil, errors.New("the informers have not synced")
	}
	return clients, nil
}

// startRetry lists once and follows with a RetryWatcher, which cannot list again.
func startRetry(ctx context.Context, config *rest.Config, namespace string, r *record) (*client, cache.InformerSynced, error) {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	list, err := api.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	if err := noteList(list, r); err != nil {
		return nil, nil, err
	}
	source := tapped(nil, func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		return api.CoreV1().Pods(namespace).Watch(ctx, options)
	}, r)
	watcher, err := retry.NewRetryWatcherWithContext(ctx, list.ResourceVersion, source)
	if err != nil {
		return nil, nil, err
	}
	go func() {
		for range watcher.ResultChan() { // the tap has noted it
		}
	}()
	held := func() (map[string]string, error) {
		select {
		case <-watcher.Done():
			return r.copy(), errors.New("the RetryWatcher has given up")
		default:
			return r.copy(), nil
		}
	}
	return &client{held: held}, func() bool { return true }, nil
}

func startTyped(ctx context.Context, config *rest.Config, namespace string, r *record) (*client, cache.InformerSynced, error) {
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	source := tapped(
		func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return api.CoreV1().Pods(namespace).List(ctx, options)
		},
		func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return api.CoreV1().Pods(namespace).Watch(ctx, options)
		}, r)
	return startInformer(ctx, source, &corev1.Pod{}, r)
}

// startProtobuf follows as startTyped does, and takes nothing but protobuf.
func startProtobuf(ctx context.Context, config *rest.Config, namespace string, r *record) (*client, cache.InformerSynced, error) {
	only := rest.CopyConfig(config)
	only.ContentType, only.AcceptContentTypes = protobufType, protobufType
	return startTyped(ctx, only, namespace, r)
}

func startMetadata(ctx context.Context, config *rest.Config, namespace string, r *record) (*client, cache.InformerSynced, error) {
	api, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	source := tapped(
		func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return api.Resource(pods).Namespace(namespace).List(ctx, options)
		},
		func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return api.Resource(pods).Namespace(namespace).Watch(ctx, options)
		}, r)
	return startInformer(ctx, source, &metav1.PartialObjectMetadata{}, r)
}

func startDynamic(ctx context.Context, config *rest.Config, namespace string, r *record) (*client, cache.InformerSynced, error) {
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	source := tapped(
		func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return api.Resource(pods).Namespace(namespace).List(ctx, options)
		},
		func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return api.Resource(pods).Namespace(namespace).Watch(ctx, options)
		}, r)
	return startInformer(ctx, source, &unstructured.Unstructured{}, r)
}

// startInformer runs a shared informer; its handlers check what an operator would see.
func startInformer(ctx context.Context, source *cache.ListWatch, example runtime.Object, r *record) (*client, cache.InformerSynced, error) {
	informer := cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
	registration, err := informer.AddEventHandler(newHandled(r))
	if err != nil {
		return nil, nil, err
	}
	go informer.RunWithContext(ctx)
	held := func() (map[string]string, error) {
		store := map[string]string{}
		for _, item := range informer.GetStore().List() {
			object, err := meta.Accessor(item)
			if err != nil {
				return store, err
			}
			store[string(object.GetUID())] = object.GetResourceVersion()
		}
		return store, nil
	}
	return &client{held: held}, registration.HasSynced, nil
}
