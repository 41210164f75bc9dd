"""Stock Python clients list, watch and exec through the front."""

from __future__ import annotations

import kubernetes
import kubernetes.stream
import kubernetes_asyncio
from kubernetes_asyncio.client import ApiClient, Configuration, CoreV1Api

from tests.kube.session.tools import Kubectl, RunningFleet, eventually


def test_kubernetes_client(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("run", "one", "--image=example/web:1")
    kubectl("wait", "--for=condition=Ready", "pod/one", "--timeout=30s")
    settings = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(fleet.layout.kubeconfig), client_configuration=settings)
    with kubernetes.client.ApiClient(settings) as api:
        core = kubernetes.client.CoreV1Api(api)
        listed = core.list_namespaced_pod(kubectl.namespace)
        assert [pod.metadata.name for pod in listed.items] == ["one"]
        stream = kubernetes.watch.Watch().stream(
            core.list_namespaced_pod, kubectl.namespace, timeout_seconds=3
        )
        assert next(event["type"] for event in stream) == "ADDED"
        out = kubernetes.stream.stream(
            core.connect_get_namespaced_pod_exec,
            "one",
            kubectl.namespace,
            command=["echo", "hi"],
            stdout=True,
        )
        assert out.strip() == "hi"


async def test_kubernetes_asyncio_client(fleet: RunningFleet, kubectl: Kubectl) -> None:
    kubectl("run", "one", "--image=example/web:1")
    eventually(lambda: kubectl.json("get", "pod", "one")["status"]["phase"] == "Running", 30)
    settings = Configuration()
    await kubernetes_asyncio.config.load_kube_config(
        str(fleet.layout.kubeconfig), client_configuration=settings
    )
    async with ApiClient(settings) as api:
        core = CoreV1Api(api)
        listed = await core.list_namespaced_pod(kubectl.namespace)
        assert [pod.metadata.name for pod in listed.items] == ["one"]
        version = listed.metadata.resource_version
        async with kubernetes_asyncio.watch.Watch() as watch:
            kubectl("label", "pod", "one", "a=b")
            stream = watch.stream(
                core.list_namespaced_pod, kubectl.namespace, resource_version=version, timeout_seconds=5
            )
            async for event in stream:
                assert int(event["object"].metadata.resource_version) > int(version)
                break
    async with kubernetes_asyncio.stream.WsApiClient(settings) as sockets:
        answer = await CoreV1Api(sockets).connect_get_namespaced_pod_exec(
            "one", kubectl.namespace, command=["echo", "hi"], stdout=True, stderr=True, stdin=False, tty=False
        )
        assert answer.strip() == "hi"
