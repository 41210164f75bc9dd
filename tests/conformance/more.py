"""More courses of requests: custom resources, subresources, discovery, owners, reviews."""

from __future__ import annotations

from typing import Any

from tests.conformance.run import APPLY, JSON_PATCH, MERGE, STRATEGIC, TABLE, Run, Scenario

_GROUP = "conformance.example.com"
_SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "any": {"x-kubernetes-preserve-unknown-fields": True, "type": "object"},
                "port": {"x-kubernetes-int-or-string": True},
                "replicas": {"type": "integer"},
                "items": {
                    "type": "array",
                    "maxItems": 2,
                    "items": {"type": "object", "properties": {"key": {"type": "string"}, "value": {"type": "integer"}},
                              "required": ["key"]},
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["key"],
                },
            },
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "ready": {"type": "boolean"}}},
    },
}  # fmt: skip


def definition() -> dict[str, Any]:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _SCHEMA},
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "description": "The mode."},
            {"name": "Ready", "type": "boolean", "jsonPath": ".status.ready", "priority": 1},
        ],
    }
    names = {"plural": "shops", "kind": "Shop", "shortNames": ["sh"], "categories": ["all"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"shops.{_GROUP}"},
        "spec": {"group": _GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def shop(ident: str, /, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "Shop",
        "metadata": {"name": ident},
        "spec": {"size": 1, **spec},
    }


async def customs(run: Run) -> None:
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await run.quietly("POST", crds, definition())
    try:
        await run.until(f"/apis/{_GROUP}/v1", lambda d: len(d["resources"]) == 3)
        await run.until(run.path("shops", group=_GROUP), lambda _: True)
        await _customs(run)
    finally:
        await run.quietly("DELETE", f"{crds}/shops.{_GROUP}")
        await run.until(f"{crds}/shops.{_GROUP}", lambda _: True, status=404)


async def _customs(run: Run) -> None:
    shops = run.path("shops", group=_GROUP)
    place = run.path("shops", "a", group=_GROUP)
    document = await run.quietly("GET", f"/apis/{_GROUP}/v1")
    for entry in document["resources"]:
        entry.pop("storageVersionHash", None)
    run.steps.append({"asked": "the group's resources", "body": document})
    await run.ask("GET", f"/apis/{_GROUP}")
    await run.ask(
        "POST", shops, shop("a", junk=1, any={"kept": 1}, port="http", items=[{"key": "k", "x": 1}])
    )
    for bad in (
        shop("b", size=0), shop("b", size="x"), shop("b", mode="c"), shop("b", name="ABC"), shop("b", name="abcdef"),
        shop("b", port=True), shop("b", items=[{"key": "a"}, {"key": "b"}, {"key": "c"}]), shop("b", items=[{}]),
        {"apiVersion": f"{_GROUP}/v1", "kind": "Shop", "metadata": {"name": "b"}, "spec": {}},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Shop", "metadata": {"name": "b"}},
        {"kind": "Shop", "metadata": {"name": "b"}, "spec": {"size": 1}},
    ):  # fmt: skip
        await run.ask("POST", shops, bad)
    await run.ask("PUT", place, shop("a"))
    await run.ask("PATCH", place, {"spec": {"size": 2}}, content_type=STRATEGIC)
    await run.ask("PATCH", place, {"spec": {"size": 2}}, content_type=MERGE)
    await run.ask("PATCH", place, {"status": {"ready": True}}, content_type=MERGE)
    await run.ask(
        "PATCH", f"{place}/status", {"status": {"ready": True}, "spec": {"size": 7}}, content_type=MERGE
    )
    await run.ask(
        "PATCH", place, [{"op": "replace", "path": "/spec/size", "value": 3}], content_type=JSON_PATCH
    )
    applied = shop("a", size=3, items=[{"key": "new", "value": 1}])
    await run.ask("PATCH", place, applied, content_type=APPLY, fieldManager="me")
    await run.ask("PATCH", place, {"spec": {"replicas": 3}}, content_type=MERGE)
    await run.ask("GET", f"{place}/scale")
    await run.ask("PATCH", f"{place}/scale", {"spec": {"replicas": 4}}, content_type=MERGE)
    await run.ask("GET", place)
    await run.ask("GET", shops)
    await run.ask("GET", shops, accept=TABLE)
    async with run.watching(shops) as events:
        await events(1)
    await run.ask("DELETE", place)


async def subresources(run: Run) -> None:
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {"containers": [{"name": "main", "image": "nginx"}]},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "d"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
    await run.quietly("POST", run.path("deployments", group="apps"), body)
    scale = run.path("deployments", "d", group="apps", sub="scale")
    got = (await run.ask("GET", scale)).decoded
    await run.ask("PUT", scale, {**got, "spec": {"replicas": 4}})
    await run.ask("PUT", scale, {**got, "spec": {"replicas": 5}})
    await run.ask("PATCH", scale, {"spec": {"replicas": 0}}, content_type=MERGE)
    await run.ask("PATCH", scale, {"spec": {"replicas": -1}}, content_type=MERGE)
    await run.ask("GET", run.path("deployments", "none", group="apps", sub="scale"))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
           "spec": {"containers": [{"name": "main", "image": "nginx"}]}}  # fmt: skip
    await run.quietly("POST", run.path("pods"), pod)
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"},
               "target": {"apiVersion": "v1", "kind": "Node", "name": "n"}}  # fmt: skip
    await run.ask("POST", run.path("pods", "p", sub="binding"), binding)
    await run.ask("POST", run.path("pods", "p", sub="binding"), binding)
    await run.ask("GET", run.path("pods", "p"))
    await run.ask("GET", run.path("pods"), fieldSelector="spec.nodeName=n,status.phase=Pending")
    await run.ask("GET", run.path("pods"), fieldSelector="spec.nodeName!=n")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    await run.ask("POST", run.path("pods", "p", sub="eviction"), eviction)
    await run.ask("POST", run.path("pods", "none", sub="eviction"), eviction)
    await run.quietly("DELETE", run.path("pods", "p"), {"gracePeriodSeconds": 0})


async def owners(run: Run) -> None:
    configs = run.path("configmaps")

    def owned(name: str, owner: dict[str, Any], **more: Any) -> dict[str, Any]:
        meta = owner["metadata"]
        reference = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": meta["name"],
            "uid": meta["uid"],
            **more,
        }
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "ownerReferences": [reference]},
        }

    async def family(name: str, **more: Any) -> None:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        made = await run.quietly("POST", configs, owner)
        await run.quietly("POST", configs, owned(f"{name}-child", made, **more))

    await family("back")
    await run.ask("DELETE", run.path("configmaps", "back"), {"propagationPolicy": "Background"})
    await run.until(run.path("configmaps", "back-child"), lambda _: True, status=404)
    await family("fore", blockOwnerDeletion=True)
    await run.ask("DELETE", run.path("configmaps", "fore"), {"propagationPolicy": "Foreground"})
    await run.until(run.path("configmaps", "fore-child"), lambda _: True, status=404)
    await run.until(run.path("configmaps", "fore"), lambda _: True, status=404)
    await family("orph")
    await run.ask("DELETE", run.path("configmaps", "orph"), {"propagationPolicy": "Orphan"})
    await run.until(run.path("configmaps", "orph"), lambda _: True, status=404)
    await run.ask("GET", run.path("configmaps", "orph-child"))
    missing = {"metadata": {"name": "gone", "uid": "11111111-1111-4111-8111-111111111111"}}
    await run.quietly("POST", configs, owned("stray", missing))
    await run.until(run.path("configmaps", "stray"), lambda _: True, status=404)


async def reviews(run: Run) -> None:
    access = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "reader"},
            "rules": [{"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]}]}  # fmt: skip
    await run.quietly("POST", run.path("roles", group="rbac.authorization.k8s.io"), role)
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "readers"},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
               "subjects": [{"kind": "User", "name": "jane"}]}  # fmt: skip
    await run.ask("POST", run.path("rolebindings", group="rbac.authorization.k8s.io"), binding)

    def review(user: str, *groups: str, **attributes: str) -> dict[str, Any]:
        spec = {"user": user, "groups": list(groups), "resourceAttributes": attributes}
        return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}

    here = {"namespace": run.namespace, "resource": "pods"}
    bodies = [
        review("jane", verb="get", **here), review("jane", verb="delete", **here),
        review("jane", verb="get", subresource="log", **here), review("jane", verb="get", resource="pods"),
        review("root", "system:masters", verb="delete", resource="nodes"),
    ]  # fmt: skip
    for attempt in range(50):
        got = await run.quietly("POST", access, bodies[0])
        if got["status"]["allowed"] or attempt == 49:
            break
        await run.engine.pause()
    for body in bodies:
        answer = await run.quietly("POST", access, body)
        run.steps.append({"asked": "SubjectAccessReview", "body": answer["status"]["allowed"]})
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "nobody's"}}
    answer = await run.quietly("POST", "/apis/authentication.k8s.io/v1/tokenreviews", token)
    run.steps.append({"asked": "TokenReview", "body": answer["status"].get("authenticated", False)})


async def discovery(run: Run) -> None:
    """What is said of the types that both engines serve; others are left out."""
    for group_version, plurals in _SHARED.items():
        root = f"/apis/{group_version}" if "/" in group_version else f"/api/{group_version}"
        document = await run.quietly("GET", root)
        entries = {entry["name"]: entry for entry in document["resources"]}
        for entry in entries.values():
            entry.pop("storageVersionHash", None)
        kept = {name: entry for name, entry in sorted(entries.items()) if name.partition("/")[0] in plurals}
        run.steps.append({"asked": root, "body": {**document, "resources": list(kept.values())}})
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    for root in ("/api", "/apis"):
        got = await run.engine.ask(run._asked("GET", root, None, "", accept, {}))
        versions = {}
        for group in got.decoded["items"]:
            name = group["metadata"].get("name", "")
            for version in group["versions"]:
                served = f"{name}/{version['version']}" if name else version["version"]
                plurals = _SHARED.get(served, ())
                versions[served] = [r for r in version["resources"] if r["resource"] in plurals]
        wanted = {
            served: sorted(versions[served], key=lambda r: r["resource"])
            for served in _SHARED
            if served in versions
        }
        head = {key: got.decoded[key] for key in ("kind", "apiVersion")}
        run.steps.append({"asked": f"{root} aggregated", "body": {**head, "versions": wanted}})


_SHARED: dict[str, tuple[str, ...]] = {
    "v1": ("configmaps", "endpoints", "events", "namespaces", "nodes", "pods", "secrets", "serviceaccounts", "services",
           "bindings", "limitranges", "persistentvolumeclaims", "persistentvolumes", "podtemplates",
           "replicationcontrollers", "resourcequotas"),
    "apps/v1": ("controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"),
    "batch/v1": ("cronjobs", "jobs"),
    "coordination.k8s.io/v1": ("leases",),
    "events.k8s.io/v1": ("events",),
    "authorization.k8s.io/v1": ("subjectaccessreviews", "selfsubjectaccessreviews", "selfsubjectrulesreviews",
                                "localsubjectaccessreviews"),
    "authentication.k8s.io/v1": ("tokenreviews", "selfsubjectreviews"),
    "rbac.authorization.k8s.io/v1": ("roles", "rolebindings", "clusterroles", "clusterrolebindings"),
    "policy/v1": ("poddisruptionbudgets",),
    "autoscaling/v2": ("horizontalpodautoscalers",),
    "apiextensions.k8s.io/v1": ("customresourcedefinitions",),
    "scheduling.k8s.io/v1": ("priorityclasses",),
    "discovery.k8s.io/v1": ("endpointslices",),
    "networking.k8s.io/v1": ("ingresses", "ingressclasses", "networkpolicies"),
}  # fmt: skip

MORE: dict[str, Scenario] = {
    "customs": customs, "subresources": subresources, "owners": owners, "reviews": reviews, "discovery": discovery,
}  # fmt: skip
