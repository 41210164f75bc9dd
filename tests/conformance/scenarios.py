"""The courses of requests. Each runs in a namespace of its own, on a cluster whose controllers make no pods."""

from __future__ import annotations

from typing import Any

from tests.conformance.more import MORE
from tests.conformance.run import (
    APPLY,
    JSON_PATCH,
    MERGE,
    PARTIAL,
    PARTIAL_LIST,
    STRATEGIC,
    TABLE,
    Run,
    Scenario,
)

Object = dict[str, Any]


def config(name: str, **labels: str) -> Object:
    meta: Object = {"name": name}
    if labels:
        meta["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"key": "value"}}


def pod(name: str, **labels: str) -> Object:
    meta: Object = {"name": name}
    if labels:
        meta["labels"] = labels
    containers = [{"name": "main", "image": "nginx:1", "ports": [{"containerPort": 80}]}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers}}


def deployment(name: str, replicas: int = 2) -> Object:
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "nginx"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


async def lists(run: Run) -> None:
    configs = run.path("configmaps")
    for number in range(5):
        await run.quietly("POST", configs, config(f"c{number}", parity=str(number % 2), mine="yes"))
    mine = {"labelSelector": "mine=yes"}
    whole = (await run.ask("GET", configs, **mine)).decoded
    version = whole["metadata"]["resourceVersion"]
    page = (await run.ask("GET", configs, limit="2")).decoded
    while page["metadata"].get("continue"):
        page = (await run.ask("GET", configs, limit="2", continue_=page["metadata"]["continue"])).decoded
    page = (await run.ask("GET", configs, limit="2", **mine)).decoded
    await run.quietly("DELETE", run.path("configmaps", "c3"))
    await run.quietly("POST", configs, config("c9", mine="yes"))
    await run.ask("GET", configs, limit="9", continue_=page["metadata"]["continue"], **mine)
    exact = {"resourceVersion": version, "resourceVersionMatch": "Exact"}
    await run.ask("GET", configs, **exact, **mine)
    await run.ask("GET", configs, resourceVersion=version, limit="3", **mine)
    await run.ask("GET", configs, resourceVersion=version, resourceVersionMatch="NotOlderThan", **mine)
    await run.ask("GET", configs, resourceVersion=version, **mine)
    for selector in (
        "parity=1", "parity!=1,mine", "parity in (0,1),!other", "parity notin (0),mine=yes", "mine,parity>0",
        "other", "parity=",
    ):  # fmt: skip
        await run.ask("GET", configs, labelSelector=selector)
    for fields in (
        "metadata.name=c1",
        "metadata.name!=c1,metadata.name!=kube-root-ca.crt",
        "metadata.namespace=x",
    ):
        await run.ask("GET", configs, fieldSelector=fields)
    await run.ask("GET", configs, accept=TABLE, **mine)
    await run.ask("GET", configs, accept=TABLE, limit="1", includeObject="None", **mine)
    await run.ask("GET", configs, accept=TABLE, limit="1", includeObject="Object", **mine)
    await run.ask("GET", configs, accept=PARTIAL_LIST, **mine)
    await run.ask("GET", run.path("configmaps", "c1"), accept=PARTIAL)
    await run.ask("GET", run.path("configmaps", "c1"), accept=TABLE)


async def refusals(run: Run) -> None:
    configs, pods = run.path("configmaps"), run.path("pods")
    future = "9000000000000"
    for query in (
        {"resourceVersionMatch": "Exact"}, {"resourceVersionMatch": "Odd", "resourceVersion": "1"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"}, {"sendInitialEvents": "true"},
        {"resourceVersion": "abc"}, {"limit": "x"}, {"continue_": "!!"}, {"continue_": "e30"},
        {"labelSelector": "a in b"}, {"labelSelector": "a,,b"}, {"labelSelector": "-a=b"}, {"labelSelector": "a=b c"},
        {"labelSelector": "a=_"}, {"labelSelector": "a>b"},
        {"fieldSelector": "spec.odd=1"}, {"fieldSelector": "odd"},
    ):  # fmt: skip
        await run.ask("GET", configs, **query)
    await run.ask("GET", pods, fieldSelector="spec.odd=1")
    await run.ask("GET", configs, resourceVersion=future)
    await run.ask("GET", run.path("configmaps", "kube-root-ca.crt"), resourceVersion=future)
    await run.ask("GET", run.path("configmaps", "none"))
    await run.ask("GET", run.path("odds"))
    await run.ask("GET", "/apis/odd.example.com/v1/odds")
    await run.ask("GET", run.path("configmaps", "none", sub="status"))
    await run.ask("GET", configs, accept="text/plain")
    await run.ask("GET", configs, accept="application/json;as=Odd;v=v1;g=meta.k8s.io")
    await run.ask("PUT", configs, config("c"))
    await run.ask("POST", run.path("configmaps", "c"), config("c"))
    for query in (
        {"sendInitialEvents": "true"}, {"resourceVersionMatch": "NotOlderThan"},
        {"sendInitialEvents": "true", "resourceVersionMatch": "Exact", "resourceVersion": "1"},
        {"resourceVersion": "abc"}, {"labelSelector": "a in b"},
    ):  # fmt: skip
        await run.ask("GET", configs, watch="1", **query)


async def watches(run: Run) -> None:
    configs = run.path("configmaps")
    await run.quietly("POST", configs, config("a", app="x"))
    version = (await run.quietly("GET", configs))["metadata"]["resourceVersion"]
    listed = {
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
    }
    async with (
        run.watching(configs, resourceVersion=version) as plain,
        run.watching(configs, resourceVersion=version, labelSelector="app=x") as selected,
        run.watching(configs, resourceVersion=version, fieldSelector="metadata.name=b") as named,
        run.watching(configs, resourceVersion=version, accept=TABLE) as table,
        run.watching(configs, resourceVersion=version, accept=PARTIAL) as partial,
        run.watching(configs, labelSelector="app", **listed) as initial,
    ):
        await initial(2)
        await run.quietly("POST", configs, config("b", app="y"))
        await run.quietly("PATCH", run.path("configmaps", "b"), {"metadata": {"labels": {"app": "x"}}}, MERGE)
        await run.quietly("PATCH", run.path("configmaps", "b"), {"data": {"key": "new"}}, MERGE)
        await run.quietly("PATCH", run.path("configmaps", "b"), {"metadata": {"labels": {"app": "z"}}}, MERGE)
        await run.quietly("DELETE", run.path("configmaps", "b"))
        await run.quietly("DELETE", run.path("configmaps", "a"))
        await plain(6)
        await selected(4)
        await named(5)
        await table(6)
        await partial(6)
        await initial(6)
    await run.quietly("POST", run.path("pods"), pod("p", app="x"))
    for kind, accept in (
        ("pods", "application/json"),
        ("pods", PARTIAL),
        ("pods", TABLE),
        ("services", TABLE),
    ):
        async with run.watching(run.path(kind), accept=accept, **listed) as first:
            await first(2 if kind == "pods" else 1)
    async with run.watching(configs) as legacy:
        await legacy(1)


async def bookmarks(run: Run) -> None:
    """The one that comes 2 s before a watch's end, to who asked for it: those of every minute would take a minute."""
    configs = run.path("configmaps")
    version = (await run.quietly("GET", configs))["metadata"]["resourceVersion"]
    ending = {"resourceVersion": version, "timeoutSeconds": "5"}
    async with (
        run.watching(configs, allowWatchBookmarks="true", **ending) as marked,
        run.watching(configs, allowWatchBookmarks="true", accept=TABLE, **ending) as table,
        run.watching(configs, allowWatchBookmarks="true", accept=PARTIAL, **ending) as partial,
        run.watching(configs, **ending) as plain,
    ):
        await run.quietly("POST", configs, config("a"))
        for take in (marked, table, partial, plain):
            _one_mark(await take(9))


def _one_mark(events: list[Any]) -> None:
    """How many there are goes by the second in which the server looks; their version is the last event's, or later."""
    marks = [event for event in events if event["type"] == "BOOKMARK"]
    # By identity: two of them can be equal, and the one that is looked at below has to be the one that stays.
    events[:] = [event for event in events if event["type"] != "BOOKMARK" or event is marks[0]]
    for event in marks[:1]:
        told, last = event["object"], events[0]["object"]
        for holder, known in zip([told, *_rows(told)], [last, *_rows(last)], strict=True):
            if (version := holder["metadata"].get("resourceVersion")) is not None:
                assert int(version) >= int(known["metadata"]["resourceVersion"])
                holder["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"]


def _rows(body: Any) -> list[Any]:
    return [row["object"] for row in body.get("rows", ())]


async def creates(run: Run) -> None:
    configs, pods = run.path("configmaps"), run.path("pods")
    await run.ask("POST", configs, config("a"))
    await run.ask("POST", configs, config("a"))
    await run.ask("POST", pods, pod("p"))
    await run.ask("POST", run.path("deployments", group="apps"), deployment("d"))
    await run.ask(
        "POST", configs, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-"}}
    )
    for body in (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, config("Not_Good"), config("a" * 254),
        config("b", **{"bad key": "x"}), config("b", good="not good"), config("b", good="x" * 64),
        {**config("b"), "metadata": {"name": "b", "namespace": "other"}},
        {**config("b"), "metadata": {"name": "b", "resourceVersion": "7"}},
        {**config("b"), "metadata": {"name": "b", "uid": "mine", "creationTimestamp": "2020-01-01T00:00:00Z",
                                     "generation": 7, "deletionTimestamp": "2020-01-01T00:00:00Z"}},
    ):  # fmt: skip
        await run.ask("POST", configs, body)
    await run.ask("POST", "/api/v1/namespaces/not-there/configmaps", config("c"))
    await run.ask("POST", configs, config("dry"), dryRun="All")
    await run.ask("GET", run.path("configmaps", "dry"))
    await run.ask("POST", configs, config("dry"), dryRun="Some")
    await run.ask("POST", pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "q"}, "spec": {}})
    await run.ask("POST", pods, {**pod("q"), "spec": {"containers": [{"name": "A"}]}})
    wrong = deployment("e")
    wrong["spec"]["selector"] = {"matchLabels": {"app": "other"}}
    await run.ask("POST", run.path("deployments", group="apps"), wrong)
    wrong = deployment("e", replicas=-1)
    del wrong["spec"]["selector"]
    await run.ask("POST", run.path("deployments", group="apps"), wrong)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
           "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "i"}]}}}}  # fmt: skip
    await run.ask("POST", run.path("jobs", group="batch"), job)
    stateful = deployment("s")
    stateful.update(kind="StatefulSet")
    stateful["spec"]["serviceName"] = "s"
    await run.ask("POST", run.path("statefulsets", group="apps"), stateful)
    daemon = deployment("ds")
    daemon.update(kind="DaemonSet")
    del daemon["spec"]["replicas"]
    await run.ask("POST", run.path("daemonsets", group="apps"), daemon)
    replica = deployment("rs")
    replica.update(kind="ReplicaSet")
    await run.ask("POST", run.path("replicasets", group="apps"), replica)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "b"}}
    await run.ask("POST", run.path("secrets"), secret)
    for plural in ("pods", "secrets"):
        await run.ask("GET", run.path(plural), accept=TABLE)
    for plural, group in (
        ("deployments", "apps"), ("replicasets", "apps"), ("statefulsets", "apps"),
        ("jobs", "batch"),
    ):  # fmt: skip
        await run.ask("GET", run.path(plural, group=group), accept=TABLE)


async def updates(run: Run) -> None:
    configs = run.path("configmaps")
    made = await run.quietly("POST", configs, config("a", x="1"))
    place = run.path("configmaps", "a")
    await run.ask("PUT", place, made)
    changed = {**made, "data": {"key": "other"}}
    await run.ask("PUT", place, changed)
    await run.ask("PUT", place, {**changed, "data": {"key": "third"}})
    await run.ask("PUT", place, config("a"))
    await run.ask("PUT", place, config("b"))
    await run.ask("PUT", run.path("configmaps", "none"), config("none"))
    wrong = config("a")
    wrong["metadata"]["uid"] = "11111111-1111-4111-8111-111111111111"
    await run.ask("PUT", place, wrong)
    wrong = config("a")
    wrong["metadata"]["resourceVersion"] = "abc"
    await run.ask("PUT", place, wrong)
    made = await run.quietly("POST", run.path("deployments", group="apps"), deployment("d"))
    place = run.path("deployments", "d", group="apps")
    await run.ask("PUT", place, {**made, "status": {"replicas": 7}, "spec": {**made["spec"], "replicas": 5}})
    await run.ask("PUT", run.path("deployments", "d", group="apps", sub="status"),
                  {**deployment("d", 9), "status": {"replicas": 3, "observedGeneration": 1}})  # fmt: skip
    wrong = deployment("d")
    wrong["spec"]["selector"]["matchLabels"] = {"app": "e"}
    wrong["spec"]["template"]["metadata"]["labels"] = {"app": "e"}
    await run.ask("PUT", place, wrong)
    made = await run.quietly("POST", run.path("pods"), pod("p"))
    made["spec"]["containers"][0]["image"] = "nginx:2"
    await run.ask("PUT", run.path("pods", "p"), made)
    await run.ask("PATCH", run.path("pods", "p"), {"spec": {"hostname": "x"}}, content_type=MERGE)
    await run.ask(
        "PATCH", run.path("pods", "p", sub="status"), {"status": {"phase": "Running"}}, content_type=MERGE
    )
    await run.ask("PATCH", run.path("pods", "p"), {"status": {"phase": "Failed"}}, content_type=MERGE)
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
             "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}  # fmt: skip
    await run.ask("PUT", run.path("leases", "l", group="coordination.k8s.io"), lease)
    await run.ask("GET", run.path("leases", group="coordination.k8s.io"), accept=TABLE)


async def patches(run: Run) -> None:
    await run.quietly("POST", run.path("configmaps"), config("a", x="1", y="2"))
    place = run.path("configmaps", "a")
    await run.ask("PATCH", place, {"metadata": {"labels": {"x": None, "z": "3"}}}, content_type=MERGE)
    await run.ask("PATCH", place, {"metadata": {"labels": {"z": "3"}}}, content_type=MERGE)
    await run.ask(
        "PATCH", place, [{"op": "add", "path": "/data/more", "value": "m"}], content_type=JSON_PATCH
    )
    await run.ask(
        "PATCH", place, [{"op": "test", "path": "/data/more", "value": "n"}], content_type=JSON_PATCH
    )
    await run.ask("PATCH", place, [{"op": "remove", "path": "/data/none"}], content_type=JSON_PATCH)
    await run.ask("PATCH", place, {"op": "remove"}, content_type=JSON_PATCH)
    await run.ask("PATCH", place, b"{", content_type=MERGE)
    await run.ask("PATCH", place, {"data": {}}, content_type="application/json")
    await run.ask("PATCH", place, {"metadata": {"resourceVersion": "1"}}, content_type=MERGE)
    await run.ask("PATCH", place, {"metadata": {"name": "b"}}, content_type=MERGE)
    await run.ask("PATCH", run.path("configmaps", "none"), {"data": {}}, content_type=MERGE)
    await run.quietly("POST", run.path("deployments", group="apps"), deployment("d"))
    place = run.path("deployments", "d", group="apps")
    sidecar = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "side:1"}]}}}}
    await run.ask("PATCH", place, sidecar, content_type=STRATEGIC)
    order = {"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "main"}, {"name": "side"}],
        "containers": [{"name": "side", "env": [{"name": "A", "value": "1"}]}],
    }}}}  # fmt: skip
    await run.ask("PATCH", place, order, content_type=STRATEGIC)
    drop = {"spec": {"template": {"spec": {"containers": [{"name": "side", "$patch": "delete"}]}}}}
    await run.ask("PATCH", place, drop, content_type=STRATEGIC)
    recreate = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    await run.ask("PATCH", place, recreate, content_type=STRATEGIC)
    await run.ask("PATCH", place, {"metadata": {"finalizers": ["example.com/a"]}}, content_type=STRATEGIC)
    await run.ask("PATCH", place, {"metadata": {"finalizers": ["example.com/b"]}}, content_type=STRATEGIC)
    await run.ask("PATCH", place, {"metadata": {"finalizers": None}}, content_type=MERGE)


async def applies(run: Run) -> None:
    place = run.path("configmaps", "a")
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"l": "1"}},
            "data": {"x": "1", "y": "1"}}  # fmt: skip
    await run.ask("PATCH", place, mine, content_type=APPLY)
    await run.ask("PATCH", place, mine, content_type=APPLY, fieldManager="me")
    await run.ask("PATCH", place, mine, content_type=APPLY, fieldManager="me")
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a"},
        "data": {"x": "2", "z": "2"},
    }
    await run.ask("PATCH", place, theirs, content_type=APPLY, fieldManager="you")
    await run.ask("PATCH", place, theirs, content_type=APPLY, fieldManager="you", force="true")
    less = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"z": "2"}}
    await run.ask("PATCH", place, less, content_type=APPLY, fieldManager="me", force="true")
    await run.ask("PATCH", place, {"data": {"z": "3"}}, content_type=MERGE, fieldManager="third")
    await run.ask("PATCH", place, theirs, content_type=APPLY, fieldManager="you")
    place = run.path("deployments", "d", group="apps")
    await run.ask("PATCH", place, deployment("d"), content_type=APPLY, fieldManager="me")
    await run.quietly("PATCH", place, {"spec": {"replicas": 5}}, MERGE, fieldManager="scaler")
    await run.ask("PATCH", place, deployment("d"), content_type=APPLY, fieldManager="me")
    without = deployment("d")
    del without["spec"]["replicas"]
    without["spec"]["template"]["spec"]["containers"].append({"name": "side", "image": "s"})
    await run.ask("PATCH", place, without, content_type=APPLY, fieldManager="me")
    await run.ask("PATCH", place, deployment("d", 5), content_type=APPLY, fieldManager="me")
    status = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "status": {"replicas": 3},
    }
    await run.ask("PATCH", run.path("deployments", "d", group="apps", sub="status"), status, content_type=APPLY,
                  fieldManager="status")  # fmt: skip


async def deletes(run: Run) -> None:
    configs = run.path("configmaps")
    made = await run.quietly("POST", configs, config("a"))
    place = run.path("configmaps", "a")
    await run.ask("DELETE", place, {"preconditions": {"uid": "11111111-1111-4111-8111-111111111111"}})
    await run.ask("DELETE", place, {"preconditions": {"resourceVersion": "1"}})
    await run.ask("DELETE", place, {"propagationPolicy": "Odd"})
    await run.ask("DELETE", place, {"dryRun": ["All"]})
    await run.ask("DELETE", place, {"preconditions": {"uid": made["metadata"]["uid"]}})
    await run.ask("DELETE", place)
    held = config("b")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await run.quietly("POST", configs, held)
    place = run.path("configmaps", "b")
    await run.ask("DELETE", place)
    await run.ask("DELETE", place)
    await run.ask("PATCH", place, {"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}},
                  content_type=MERGE)  # fmt: skip
    await run.ask("PATCH", place, {"data": {"still": "here"}}, content_type=MERGE)
    await run.ask("PATCH", place, {"metadata": {"finalizers": None}}, content_type=MERGE)
    await run.ask("GET", place)
    await run.quietly("POST", run.path("pods"), pod("p"))
    await run.ask("DELETE", run.path("pods", "p"))
    await run.quietly(
        "POST", run.path("pods"), {**pod("q"), "spec": {**pod("q")["spec"], "nodeName": "nowhere"}}
    )
    await run.ask("DELETE", run.path("pods", "q"))
    await run.ask("DELETE", run.path("pods", "q"), gracePeriodSeconds="5")
    await run.ask("DELETE", run.path("pods", "q"), {"gracePeriodSeconds": 0})
    await run.ask("GET", run.path("pods", "q"))
    await run.quietly("POST", run.path("deployments", group="apps"), deployment("d"))
    await run.ask("DELETE", run.path("deployments", "d", group="apps"), propagationPolicy="Background")
    for number in range(3):
        await run.quietly("POST", configs, config(f"c{number}", odd=str(number % 2)))
    await run.ask("DELETE", configs, labelSelector="odd=0")
    await run.ask("GET", configs, labelSelector="odd")


SCENARIOS: dict[str, Scenario] = {
    "lists": lists, "refusals": refusals, "watches": watches, "creates": creates, "updates": updates,
    "patches": patches, "applies": applies, "deletes": deletes, **MORE,
}  # fmt: skip
TIMED: dict[str, Scenario] = {"bookmarks": bookmarks}
"""What the server's own clock brings: over HTTP on both engines."""
