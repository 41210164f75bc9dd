"""Access to Kubernetes clusters: resources, credentials, client, informer."""
