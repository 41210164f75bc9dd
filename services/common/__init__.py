"""What every service stands on: configuration, errors, Kubernetes and etcd clients, gRPC, tasks, telemetry."""
