"""Copies ConfigMaps of the host that are labelled `examples.reclock.dev/copy=true` to every cluster, those that join
later included. A copy goes when its original goes or loses the label.

    reclock dev examples/python/configmap_copier.py
"""

from __future__ import annotations

from reclock import FLEET, Cluster, For, NotFound, Object, On, Request, controller, run

LABEL = "examples.reclock.dev/copy"
COPY = "examples.reclock.dev/copy-of-host"


@controller(for_=[For("v1/configmaps", name="configmap", on=On.HOST), FLEET], on=On.HOST, name="configmap-copier")
async def configmap_copier(request: Request) -> None:
    """A request is a ConfigMap of the host, or a cluster that has joined."""
    if request.source == "cluster":
        for one in await request.fleet.host.list("v1/configmaps", labels=f"{LABEL}=true"):
            await copy(one, request.fleet.cluster(request.name))
        return
    original = await request.get()
    wanted = original is not None and (original["metadata"].get("labels") or {}).get(LABEL) == "true"
    for info in await request.fleet.clusters():
        cluster = request.fleet.cluster(info.name)
        if original is not None and wanted:
            await copy(original, cluster)
        else:
            await remove(request.namespace, request.name, cluster)


async def copy(original: Object, cluster: Cluster) -> None:
    """Make the cluster's ConfigMap of that name like the host's."""
    namespace, name = original["metadata"]["namespace"], original["metadata"]["name"]
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {COPY: "true"}},
        "data": original.get("data") or {},
    }
    try:
        await cluster.apply(made, manager="configmap-copier")
    except NotFound:  # the namespace, or the cluster: the second time that is an error, and tried again later
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        await cluster.apply(made, manager="configmap-copier")
    print(f"copied {namespace}/{name} to {cluster.name}", flush=True)


async def remove(namespace: str, name: str, cluster: Cluster) -> None:
    """Delete the copy, if there is one: never a ConfigMap that is the cluster's own."""
    found = await cluster.find("v1/configmaps", name, namespace)
    if found is not None and (found["metadata"].get("labels") or {}).get(COPY) == "true":
        await cluster.delete("v1/configmaps", name, namespace, uid=found["metadata"]["uid"])
        print(f"removed {namespace}/{name} from {cluster.name}", flush=True)


if __name__ == "__main__":
    run(configmap_copier)
