"""A small operator that knows nothing of Reclock: each PodSet gets its Pods, owned by it.

    KUBECONFIG=.reclock/kubeconfig python examples/python/podset_operator.py

It installs its CRD, then watches PodSets through the front. The Pods run on members, where no PodSet exists:
Reclock keeps the members' garbage collectors from deleting them, and deletes them itself when their owner goes.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.exceptions import ApiException

GROUP, VERSION, PLURAL, KIND = "examples.reclock.dev", "v1", "podsets", "PodSet"
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": PLURAL, "singular": "podset", "kind": KIND},
        "versions": [{"name": VERSION, "served": True, "storage": True, "schema": SCHEMA}],
    },
}


def pod(owner: dict[str, Any], number: int) -> dict[str, Any]:
    """The owner's pod of this number."""
    metadata = owner["metadata"]
    reference = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{metadata['name']}-{number}", "ownerReferences": [reference]},
        "spec": {"containers": [{"name": "main", "image": owner["spec"].get("image", "nginx")}]},
    }


async def reconcile(core: client.CoreV1Api, owner: dict[str, Any]) -> None:
    """Make what is missing; what is there stays."""
    for number in range(int(owner["spec"].get("replicas", 1))):
        try:
            await core.create_namespaced_pod(owner["metadata"]["namespace"], pod(owner, number))
        except ApiException as error:
            if error.status != 409:
                raise


async def run() -> None:
    """Install the CRD and follow PodSets until interrupted."""
    await config.load_kube_config()
    async with client.ApiClient() as api:
        with contextlib.suppress(ApiException):  # it is there already
            await client.ApiextensionsV1Api(api).create_custom_resource_definition(CRD)
        core, custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        while True:
            try:
                listed = await custom.list_cluster_custom_object(GROUP, VERSION, PLURAL)  # 404 until the CRD is served
                for owner in listed["items"]:
                    await reconcile(core, owner)
                async with watch.Watch() as events:
                    stream = events.stream(
                        custom.list_cluster_custom_object, GROUP, VERSION, PLURAL, timeout_seconds=60,
                        resource_version=listed["metadata"]["resourceVersion"],
                    )  # fmt: skip
                    async for event in stream:
                        if event["type"] in ("ADDED", "MODIFIED"):
                            await reconcile(core, event["object"])
            except ApiException as error:
                print(f"watching {PLURAL}: {error.reason}; again in a second", flush=True)
                await asyncio.sleep(1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run())
