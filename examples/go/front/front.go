// Package front makes clients of any cluster of the fleet, through Reclock's front: no credentials of members needed.
package front

import (
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ConfigMaps and the rest are the resources of the examples.
var (
	ConfigMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	Namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	Clusters   = schema.GroupVersionResource{Group: "reclock.dev", Version: "v1alpha1", Resource: "clusters"}
)

// Front is how to reach the fleet: RECLOCK_FRONT with RECLOCK_TOKEN_FILE and RECLOCK_CA_FILE, else a kubeconfig.
type Front struct{ config *rest.Config }

// New reads the environment.
func New() (*Front, error) {
	if url := os.Getenv("RECLOCK_FRONT"); url != "" {
		tls := rest.TLSClientConfig{CAFile: os.Getenv("RECLOCK_CA_FILE")}
		return &Front{&rest.Config{Host: url, BearerTokenFile: os.Getenv("RECLOCK_TOKEN_FILE"), TLSClientConfig: tls}}, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	return &Front{config}, err
}

// Cluster is a client of one cluster; "" is the host.
func (f *Front) Cluster(name string) (dynamic.Interface, error) {
	config := rest.CopyConfig(f.config)
	if name != "" {
		config.Host += "/clusters/" + name
	}
	return dynamic.NewForConfig(config)
}
