"""Many pods at once, for benchmarks: stored as a real cluster would hold them, without the cost of creating each."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.local.sim.cluster import Cluster
from deploy.local.sim.objects import decode, encode, new_uid
from deploy.local.sim.store import State
from deploy.local.sim.types import Object


def load_pods(
    cluster: Cluster, count: int, *, namespace: str = "default", prefix: str = "pod", node: str = "",
    labels: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Adds `count` running pods `<prefix>-000000` and on, each a revision of its own. Cost: some 10 µs and 2 KB each."""
    found = dict(labels or {"app": prefix})
    made = cluster.create({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"{prefix}-template", "namespace": namespace, "labels": found},
        "spec": {"nodeName": node or f"{cluster.name}-n0", "containers": [{"name": "main", "image": "nginx:1"}]},
    })  # fmt: skip
    cluster.delete("pods", namespace, made["metadata"]["name"])
    store, collection = cluster.core.store, cluster.core.collection(cluster.type("pods"))
    pieces = _pieces(made, cluster.core.now())
    for number in range(count):
        name, version = f"{prefix}-{number:06}", store.next_revision()
        values = (name, new_uid(cluster.core.random), str(version))
        raw = pieces[0] + b"".join(
            value.encode() + piece for value, piece in zip(values, pieces[1:], strict=True)
        )
        store.put(collection, State(f"{namespace}/{name}", version, raw, found))


def _pieces(pod: Object, now: str) -> list[bytes]:
    """The pod's JSON around its name, uid and version."""
    marks = ("\x00name\x00", "\x00uid\x00", "\x00version\x00")
    meta = {**pod["metadata"], "name": marks[0], "uid": marks[1], "resourceVersion": marks[2]}
    for name in ("deletionTimestamp", "deletionGracePeriodSeconds"):
        meta.pop(name, None)
    ordered = {name: meta.pop(name) for name in ("name", "namespace", "uid", "resourceVersion")}
    ready = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
        for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    running = {"name": "main", "state": {"running": {"startedAt": now}}, "lastState": {}, "ready": True,
               "restartCount": 0, "image": "nginx:1", "imageID": "", "started": True}  # fmt: skip
    status = {"phase": "Running", "conditions": ready, "hostIP": "127.0.0.1", "podIP": "10.0.0.1",
              "startTime": now, "containerStatuses": [running], "qosClass": "BestEffort"}  # fmt: skip
    raw = encode({"metadata": {**ordered, **meta}, "spec": pod["spec"], "status": status})
    pieces = []
    for mark in marks:
        piece, raw = raw.split(encode(mark)[1:-1], 1)
        pieces.append(piece)
    assert decode(b"".join([pieces[0], b"a", pieces[1], b"b", pieces[2], b"c", raw]))
    return [*pieces, raw]
