"""What every service stands on: configuration, errors, clients, gRPC, tasks, telemetry."""
