package main

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// newHandled judges what an informer hands to its user: each object once, and none that had gone unnoticed.
func newHandled(r *record) cache.ResourceEventHandler {
	known := map[string]bool{} // handlers of one registration are called one after the other
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(item any) {
			if object, ok := r.object(item); ok {
				r.expect(!known[string(object.GetUID())], "handler was given twice", object)
				known[string(object.GetUID())] = true
			}
		},
		UpdateFunc: func(_, item any) {
			if object, ok := r.object(item); ok {
				r.expect(known[string(object.GetUID())], "handler was given an update without an add", object)
			}
		},
		DeleteFunc: func(item any) {
			if gone, missed := item.(cache.DeletedFinalStateUnknown); missed {
				r.note(fmt.Sprintf("the informer missed the deletion of %s", gone.Key))
				item = gone.Obj
			}
			if object, ok := r.object(item); ok {
				r.expect(known[string(object.GetUID())], "handler was given a deletion without an add", object)
				delete(known, string(object.GetUID()))
			}
		},
	}
}

func (r *record) object(item any) (metav1.Object, bool) {
	object, err := meta.Accessor(item)
	if err != nil {
		r.note(err.Error())
	}
	return object, err == nil
}

func (r *record) expect(right bool, what string, object metav1.Object) {
	if !right {
		r.note(fmt.Sprintf("%s: %s %s at %s", what, object.GetName(), object.GetUID(), object.GetResourceVersion()))
	}
}

func (r *record) note(breach string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.breaches = append(r.breaches, breach)
}

// copy returns what the events add up to: uid -> version.
func (r *record) copy() map[string]string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	all := make(map[string]string, len(r.known))
	for uid, version := range r.known {
		all[uid] = version
	}
	return all
}
