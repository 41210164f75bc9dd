"""Pods as an apiserver prints them (3.8-8 kB, managedFields included), for tests and benchmarks."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any


def uid_of(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _fields(rng: random.Random, owner: str | None, containers: list[str]) -> list[dict[str, Any]]:
    per_container = {
        f'k:{{"name":"{name}"}}': {
            ".": {},
            "f:image": {},
            "f:imagePullPolicy": {},
            "f:name": {},
            "f:resources": {},
            "f:terminationMessagePath": {},
            "f:terminationMessagePolicy": {},
            "f:ports": {
                ".": {},
                'k:{"containerPort":8080,"protocol":"TCP"}': {".": {}, "f:containerPort": {}},
            },
        }
        for name in containers
    }
    metadata: dict[str, Any] = {
        "f:generateName": {},
        "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}},
    }
    if owner:
        metadata["f:ownerReferences"] = {".": {}, f'k:{{"uid":"{owner}"}}': {}}
    conditions = {
        f'k:{{"type":"{kind}"}}': {
            ".": {},
            "f:lastProbeTime": {},
            "f:lastTransitionTime": {},
            "f:status": {},
            "f:type": {},
        }
        for kind in ("ContainersReady", "Initialized", "PodReadyToStartContainers", "Ready")
    }
    spec = {
        "f:containers": per_container,
        "f:dnsPolicy": {},
        "f:enableServiceLinks": {},
        "f:restartPolicy": {},
    }
    stamp = f"2026-11-{rng.randint(1, 28):02}T12:00:{rng.randint(0, 59):02}Z"
    return [
        {
            "manager": "kube-controller-manager",
            "operation": "Update",
            "apiVersion": "v1",
            "time": stamp,
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": metadata, "f:spec": spec},
        },
        {
            "manager": "kubelet",
            "operation": "Update",
            "apiVersion": "v1",
            "time": stamp,
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:status": {
                    "f:conditions": conditions,
                    "f:containerStatuses": {},
                    "f:hostIP": {},
                    "f:phase": {},
                    "f:podIP": {},
                    "f:podIPs": {".": {}, 'k:{"ip":"10.1.2.3"}': {}},
                }
            },
            "subresource": "status",
        },
    ]


def _container(name: str, rng: random.Random) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"registry.example/{name}:1.{rng.randint(0, 99)}",
        "ports": [{"containerPort": 8080, "protocol": "TCP"}],
        "env": [
            {"name": f"SETTING_{i}", "value": f'{"x" * rng.randint(3, 30)}{{["\\'}
            for i in range(rng.randint(2, 9))
        ],
        "resources": {"limits": {"cpu": "500m"}, "requests": {"cpu": "100m", "memory": "64Mi"}},
        "volumeMounts": [
            {
                "name": "kube-api-access",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            }
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _status(containers: list[str], rng: random.Random) -> dict[str, Any]:
    stamp = "2026-11-30T12:00:00Z"
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": stamp}
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
        ],
        "hostIP": "10.0.0.7",
        "podIP": "10.1.2.3",
        "podIPs": [{"ip": "10.1.2.3"}],
        "startTime": stamp,
        "containerStatuses": [
            {
                "name": name,
                "state": {"running": {"startedAt": stamp}},
                "lastState": {},
                "ready": True,
                "restartCount": rng.randint(0, 5),
                "image": f"registry.example/{name}:1",
                "imageID": "registry.example/x@sha256:" + f"{rng.getrandbits(256):064x}",
                "containerID": "containerd://" + f"{rng.getrandbits(256):064x}",
                "started": True,
            }
            for name in containers
        ],
        "qosClass": "Burstable",
    }


def pod(seed: int, *, annotations: bool = True, owner: bool = True, typed: bool = True) -> dict[str, Any]:
    """One pod as a dict in the apiserver's field order; `typed` adds kind and apiVersion (events have them)."""
    rng = random.Random(seed)
    owner_uid = uid_of(rng) if owner else None
    containers = ["app", "sidecar", "log-shipper"][: rng.randint(1, 3)]
    metadata: dict[str, Any] = {
        "name": f"web-{seed:06}-{rng.getrandbits(20):05x}",
        "generateName": f"web-{seed:06}-",
        "namespace": f"namespace-{seed % 37}",
        "uid": uid_of(rng),
        "resourceVersion": str(rng.randint(1000, 10**7)),
        "creationTimestamp": "2026-11-30T11:59:00Z",
        "labels": {"app": "web", "pod-template-hash": f"{rng.getrandbits(32):08x}"},
    }
    if annotations:
        metadata["annotations"] = {
            "example.dev/config": json.dumps({"a": [1, {"b": "}"}], "resourceVersion": "7"}),
            "kubectl.kubernetes.io/restartedAt": "2026-11-30T11:58:00Z",
        }
    if owner_uid:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": f"web-{seed}",
                "uid": owner_uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    metadata["managedFields"] = _fields(rng, owner_uid, containers)
    spec = {
        "volumes": [
            {
                "name": "kube-api-access",
                "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}], "defaultMode": 420},
            }
        ],
        "containers": [_container(name, rng) for name in containers],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "nodeName": f"node-{rng.randint(0, 99)}",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "priority": 0,
        "enableServiceLinks": True,
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
        ],
    }
    head = {"kind": "Pod", "apiVersion": "v1"} if typed else {}
    return {**head, "metadata": metadata, "spec": spec, "status": _status(containers, rng)}


def compact(value: Any) -> bytes:
    """JSON as Go prints it: no white space, HTML's characters escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").encode()


def pod_bytes(seed: int, **options: bool) -> bytes:
    return compact(pod(seed, **options))
