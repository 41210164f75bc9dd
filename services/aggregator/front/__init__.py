"""The Kubernetes HTTP front: to a client it is an API server.

Requests come in through `server`, are taken apart (`request_info`), authenticated (`authn`), impersonated
(`impersonation`), authorised (`authz`) and sent where they belong (`dispatch`): aggregated resources to reads and
writes, tunnels to members, everything else to the host byte for byte.
"""

from services.aggregator.front.front import Front

__all__ = ["Front"]
