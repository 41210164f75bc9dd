"""Pure parts of the reconciler: keys, digests, patches, manifests, closures, Workload specs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.kube.content import contains, digest, fingerprint
from services.reconciler import keys
from services.reconciler.closure import Need, closure
from services.reconciler.manifests import manifest
from services.reconciler.names import DIGEST, HOST_UID, ORIGIN
from services.reconciler.objects import merge_diff, propagation, set_condition, workload_name
from services.reconciler.workload_spec import pod_count, unavailable_budget, workload_spec

Obj = dict[str, Any]


def obj(kind: str, name: str, namespace: str = "ns", **fields: Any) -> Obj:
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "7", "generation": 1}
    return {"kind": kind, "metadata": {key: value for key, value in meta.items() if value}, **fields}


@pytest.mark.parametrize("key", [keys.Key("job", "ns", "a"), keys.Key("namespace", "", "a"), keys.Key("owned/pods", "n", "p.q")])
def test_keys_round_trip(key: keys.Key) -> None:
    assert keys.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "a", "a/b", "ns//x", "ns/kind/"])
def test_bad_keys_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        keys.parse(text)


def test_workload_names_are_short_and_distinct() -> None:
    assert workload_name("job", "a") == "job-a"
    long = [workload_name("deployment", "x" * 60 + end) for end in "ab"]
    assert long[0] != long[1] and all(len(name) <= 63 for name in long)


def test_contains_ignores_defaults_but_sees_changes() -> None:
    desired = {"spec": {"replicas": 2, "containers": [{"image": "a"}], "selector": {}, "suspend": False}}
    stored = {"spec": {"replicas": 2, "containers": [{"image": "a", "pull": "Always"}], "extra": 1, "suspend": False}}
    assert contains(stored, desired)
    for field, value in (("replicas", 3), ("containers", [{"image": "b"}]), ("containers", []), ("suspend", True)):
        changed = {"spec": {**stored["spec"], field: value}}
        assert not contains(changed, desired), field


def test_fingerprint_sees_content_and_not_bookkeeping() -> None:
    one = obj("ConfigMap", "a", data={"a": "1"})
    same = copy.deepcopy(one)
    same["metadata"]["resourceVersion"] = "9"
    same["status"] = {"x": 1}
    assert fingerprint(one) == fingerprint(same)
    same["data"]["a"] = "2"
    assert fingerprint(one) != fingerprint(same)


json_values = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3)), lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3)
)
mappings = st.dictionaries(st.text(max_size=2), json_values, max_size=4)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


@given(mappings, mappings)
def test_merge_diff_is_a_merge_patch(old: Obj, new: Obj) -> None:
    patch = merge_diff(old, new)
    assert merge(old, patch) == new
    assert (patch == {}) == (old == new)


def test_conditions_keep_their_time_while_their_status_stands() -> None:
    first = set_condition([], "PodsReady", "False", "No", "0 of 1")
    first[0]["lastTransitionTime"] = "2020-01-01T00:00:00Z"
    same = set_condition(first, "PodsReady", "False", "No", "1 of 2")
    assert same[0]["lastTransitionTime"] == "2020-01-01T00:00:00Z" and same[0]["message"] == "1 of 2"
    assert set_condition(same, "PodsReady", "True", "Yes", "")[0]["lastTransitionTime"] != "2020-01-01T00:00:00Z"


def test_copies_carry_origin_uid_and_digest_but_not_the_hosts_own() -> None:
    host = obj("Job", "j", spec={"suspend": False, "ttlSecondsAfterFinished": 5, "template": {"metadata": {"creationTimestamp": None}}})
    host["metadata"] |= {
        "labels": {"app": "x"}, "ownerReferences": [{"uid": "cron"}], "finalizers": ["f"],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "keep": "me"},
    }  # fmt: skip
    made = manifest("job", host, "fleet", suspend=True, failed_base=3)
    assert made["spec"] == {"suspend": True, "manualSelector": True, "template": {"metadata": {}}}
    meta = made["metadata"]
    assert meta["labels"] == {"app": "x", ORIGIN: "fleet"}
    assert not {"ownerReferences", "finalizers", "uid", "resourceVersion"} & meta.keys()
    assert meta["annotations"][HOST_UID] == "uid-j" and meta["annotations"]["keep"] == "me"
    assert len(meta["annotations"]) == 4
    # What was fixed when the copy was made is no reason to write it again.
    assert manifest("job", host, "fleet", suspend=True)["metadata"]["annotations"][DIGEST] == meta["annotations"][DIGEST]
    assert host["spec"]["suspend"] is False and "ttlSecondsAfterFinished" in host["spec"]


@pytest.mark.parametrize(("address", "kept"), [("None", {"clusterIP": "None"}), ("10.0.0.1", {})])
def test_services_leave_their_addresses_behind(address: str, kept: Obj) -> None:
    spec = {"clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"], "selector": {"a": "b"},
            "ports": [{"port": 80, "nodePort": 30000}]}  # fmt: skip
    made = manifest("service", obj("Service", "s", spec=spec), "fleet")
    assert made["spec"] == {"selector": {"a": "b"}, "ports": [{"port": 80}], **kept}


def test_digests_depend_on_content_only() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 1, "b": 3})


class Host:
    """Objects by kind and name, as the closure reads them."""

    def __init__(self, *objects: Obj) -> None:
        kinds = {"PersistentVolumeClaim": "claim"}
        self.found = {(kinds.get(o["kind"], o["kind"].lower()), o["metadata"]["name"]): o for o in objects}

    def get(self, kind: str, namespace: str, name: str) -> Obj | None:
        return self.found.get((kind, name))

    def in_namespace(self, kind: str, namespace: str) -> list[Obj]:
        return [o for (k, _), o in self.found.items() if k == kind]


def owner(pod: Obj, **spec: Any) -> Obj:
    template = {"metadata": {"labels": {"app": "x", "tier": "db"}}, "spec": {"containers": [], **pod}}
    return obj("StatefulSet", "o", spec={"template": template, **spec})


def needs(pod: Obj, host: Host, **spec: Any) -> tuple[set[tuple[str, str]], set[str]]:
    found = closure(owner(pod, **spec), host)
    return {(need.kind, need.name) for need in found.objects}, {need.name for need in found.missing}


def test_closure_follows_everything_that_a_pod_names() -> None:
    host = Host(
        *(obj("ConfigMap", f"c{i}") for i in range(4)), *(obj("Secret", f"s{i}") for i in range(7)),
        obj("ServiceAccount", "robot", secrets=[{"name": "s4"}], imagePullSecrets=[{"name": "s5"}]),
        obj("PersistentVolumeClaim", "data", spec={"storageClassName": "fast"}),
        obj("StorageClass", "fast", ""), obj("PriorityClass", "high", ""), obj("RuntimeClass", "gvisor", ""),
        obj("NetworkPolicy", "deny"), obj("LimitRange", "limits"),
        obj("Service", "mine", spec={"selector": {"app": "x"}}), obj("Service", "other", spec={"selector": {"app": "y"}}),
        obj("Service", "headless", spec={"clusterIP": "None"}), obj("ConfigMap", "kube-root-ca.crt"),
        obj("ConfigMap", "unrelated"),
    )  # fmt: skip
    pod = {
        "containers": [{
            "envFrom": [{"configMapRef": {"name": "c0"}}, {"secretRef": {"name": "s0"}}],
            "env": [{"name": "A", "value": "1"}, {"valueFrom": {"configMapKeyRef": {"name": "c1", "key": "k"}}},
                    {"valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}},
                    {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        }],
        "initContainers": [{"envFrom": [{"secretRef": {"name": "s6"}}]}],
        "volumes": [
            {"configMap": {"name": "c2"}}, {"secret": {"secretName": "s2"}}, {"emptyDir": {}},
            {"persistentVolumeClaim": {"claimName": "data"}},
            {"projected": {"sources": [{"configMap": {"name": "c3"}}, {"configMap": {"name": "kube-root-ca.crt"}},
                                       {"serviceAccountToken": {"path": "t"}}]}},
        ],
        "imagePullSecrets": [{"name": "s3"}], "serviceAccountName": "robot", "priorityClassName": "high",
        "runtimeClassName": "gvisor",
    }  # fmt: skip
    found, missing = needs(pod, host, serviceName="headless")
    assert missing == set()
    assert found == {
        *(("configmap", f"c{i}") for i in range(4)), *(("secret", f"s{i}") for i in range(7)),
        ("serviceaccount", "robot"), ("claim", "data"), ("storageclass", "fast"), ("priorityclass", "high"),
        ("runtimeclass", "gvisor"), ("networkpolicy", "deny"), ("limitrange", "limits"),
        ("service", "mine"), ("service", "headless"),
    }  # fmt: skip


def test_closure_reports_what_is_missing_unless_it_is_optional() -> None:
    pod = {
        "containers": [{"envFrom": [{"configMapRef": {"name": "gone"}}, {"secretRef": {"name": "maybe", "optional": True}}]}],
        "imagePullSecrets": [{"name": "pull"}], "serviceAccountName": "default",
        "priorityClassName": "system-node-critical",
    }  # fmt: skip
    assert needs(pod, Host()) == (set(), {"gone"})
    assert needs(pod, Host(obj("Secret", "maybe")))[0] == {("secret", "maybe")}


def test_tokens_of_the_hosts_accounts_stay_there() -> None:
    token = obj("Secret", "t", type="kubernetes.io/service-account-token")
    host = Host(obj("ServiceAccount", "robot", secrets=[{"name": "t"}]), token)
    assert needs({"serviceAccountName": "robot"}, host)[0] == {("serviceaccount", "robot")}


def test_scopes_of_needs() -> None:
    host = Host(obj("ServiceAccount", "robot"), obj("PriorityClass", "high", ""))
    found = closure(owner({"serviceAccountName": "robot", "priorityClassName": "high"}), host).objects
    assert {need.key for need in found} == {("serviceaccount", "ns", "robot"), ("priorityclass", "", "high")}
    assert str(Need("secret", "ns", "a")) == "secret ns/a"


def requests(**amounts: str) -> Obj:
    return {"resources": {"requests": amounts}}


@pytest.mark.parametrize(("spec", "want"), [
    ({"containers": [requests(cpu="100m", memory="1Gi"), requests(cpu="0.2")]}, {"cpu": "300m", "memory": "1073741824"}),
    ({"containers": [requests(cpu="1")], "initContainers": [requests(cpu="3")]}, {"cpu": "3"}),
    ({"containers": [requests(cpu="1")],
      "initContainers": [{**requests(cpu="1"), "restartPolicy": "Always"}, requests(cpu="1500m")]}, {"cpu": "2500m"}),
    ({"containers": [{"resources": {"limits": {"cpu": "2"}}}], "overhead": {"cpu": "250m"}}, {"cpu": "2250m"}),
    ({"containers": [{}]}, {}),
    ({"containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}],
      "resources": {"requests": {"cpu": "3"}}, "overhead": {"cpu": "1"}}, {"cpu": "4", "memory": "1073741824"}),
])  # fmt: skip
def test_a_workload_says_what_its_pods_request(spec: Obj, want: dict[str, str]) -> None:
    made = workload_spec("job", obj("Job", "j", spec={"template": {"spec": spec}}))
    assert made["podSets"][0]["requests"] == want


@pytest.mark.parametrize(("spec", "want"), [
    ({}, 1), ({"parallelism": 5}, 5), ({"parallelism": 5, "completions": 2}, 2), ({"parallelism": 0}, 0),
])  # fmt: skip
def test_pods_of_a_job(spec: Obj, want: int) -> None:
    assert pod_count("job", {"spec": spec}) == want


def test_workload_of_a_suspended_at_most_once_job() -> None:
    job = obj("Job", "j", spec={"suspend": True, "template": {"spec": {"nodeSelector": {"a": "b"}, "priority": 0}}})
    job["metadata"]["annotations"] = {"reclock.dev/at-most-once": "true"}
    spec = workload_spec("job", job)
    assert (spec["mode"], spec["suspend"], spec["atMostOnce"]) == ("Single", True, True)
    assert spec["podSets"][0]["constraints"] == {"nodeSelector": {"a": "b"}}
    assert spec["owner"] == {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-j"}


@pytest.mark.parametrize(("rolling", "want"), [
    ({"maxUnavailable": "25%"}, 2), ({"maxUnavailable": "30%"}, 2), ({"maxUnavailable": 0}, 0), ({"maxUnavailable": 3}, 3),
    ({}, 2), ({"maxUnavailable": "1%", "maxSurge": 0}, 1), ({"maxUnavailable": "1%", "maxSurge": "1%"}, 0),
])  # fmt: skip
def test_moves_keep_to_max_unavailable(rolling: dict[str, Any], want: int) -> None:
    assert unavailable_budget({"spec": {"replicas": 8, "strategy": {"rollingUpdate": rolling}}}) == want
    assert unavailable_budget({"spec": {"replicas": 8, "strategy": {"type": "Recreate"}}}) == 0
    assert unavailable_budget({"spec": {"replicas": 8}}) == 0, "a ReplicaSet"


@pytest.mark.parametrize(("finalizers", "want"), [
    ([], "Background"), (["orphan", "x"], "Orphan"), (["foregroundDeletion"], "Foreground"),
])  # fmt: skip
def test_finalizers_tell_the_propagation(finalizers: list[str], want: str) -> None:
    assert propagation({"metadata": {"finalizers": finalizers}}) == want
