package main

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// tapped is a ListerWatcher that notes everything that passes.
func tapped(lists cache.ListWithContextFunc, watches cache.WatchFuncWithContext, r *record) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := lists(ctx, options)
			if err != nil {
				return list, err
			}
			return list, noteList(list, r)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			stream, err := watches(ctx, options)
			if err != nil {
				return stream, err
			}
			return tapStream(stream, options, r), nil
		},
	}
}

func noteList(list runtime.Object, r *record) error {
	about, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	items := []metav1.Object{}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, err := meta.Accessor(item)
		items = append(items, object)
		return err
	})
	r.listed(about.GetResourceVersion(), items)
	return err
}

func tapStream(stream watch.Interface, options metav1.ListOptions, r *record) watch.Interface {
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	if initial {
		r.restarted()
	}
	return watch.Filter(stream, func(told watch.Event) (watch.Event, bool) {
		if status, failed := told.Object.(*metav1.Status); failed {
			r.failed(status)
			return told, true
		}
		object, err := meta.Accessor(told.Object)
		if err != nil {
			r.failed(&metav1.Status{Message: err.Error()})
			return told, true
		}
		if object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			initial = false
		}
		r.told(told.Type, object, initial)
		return told, true
	})
}
