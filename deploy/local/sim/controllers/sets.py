"""Which controllers a simulated cluster runs."""

from __future__ import annotations

from collections.abc import Callable

from deploy.local.sim.controllers.crds import Definitions
from deploy.local.sim.controllers.deployments import Deployments
from deploy.local.sim.controllers.garbage import GarbageCollector
from deploy.local.sim.controllers.jobs import Jobs
from deploy.local.sim.controllers.kubelet import Kubelet
from deploy.local.sim.controllers.manager import Controller, Manager
from deploy.local.sim.controllers.namespaces import Namespaces
from deploy.local.sim.controllers.nodes import Nodes
from deploy.local.sim.controllers.replicasets import ReplicaSets
from deploy.local.sim.controllers.scheduling import Scheduler
from deploy.local.sim.controllers.statefulsets import DaemonSets, StatefulSets

Kinds = tuple[Callable[[Manager], Controller], ...]

#: What every API server needs to be usable.
BASIC: Kinds = (Definitions, Namespaces, GarbageCollector)
#: A whole cluster.
MEMBER: Kinds = (*BASIC, Nodes, Scheduler, Kubelet, ReplicaSets, Deployments, StatefulSets, DaemonSets, Jobs)
#: Reclock's host: Deployments get their ReplicaSets there, and those their pods in members.
HOST: Kinds = (*BASIC, Deployments)
#: Nothing happens by itself: for tests that make every event themselves.
NONE: Kinds = ()
BY_NAME: dict[str, Kinds] = {"member": MEMBER, "host": HOST, "basic": BASIC, "none": NONE}
