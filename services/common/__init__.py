"""What every service stands on: configuration, errors, clients, gRPC, tasks, telemetry."""

import os

# gRPC's fork handlers crash about a third of the children that a busy process starts with a `preexec_fn`
# (measured); nobody here forks without an exec, which is all that they are for. Read when gRPC is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
