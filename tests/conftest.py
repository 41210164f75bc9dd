"""For all tests: gRPC is loaded the way services load it, whatever a test imports first."""

import services.common  # noqa: F401 - sets the environment that gRPC reads when it is loaded
