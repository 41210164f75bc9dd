"""Subresources with bodies of their own: scale, binding, eviction, token; logs and tunnels; types that are not stored."""

from __future__ import annotations

from typing import Any

from deploy.local.sim import errors, reviews
from deploy.local.sim.core import Core, User
from deploy.local.sim.deletes import Options, delete
from deploy.local.sim.objects import encode, loaded
from deploy.local.sim.patches import merge_patch, patch
from deploy.local.sim.represent import Form
from deploy.local.sim.requests import Answer, Request, Response, StreamResponse, Target, decode_body
from deploy.local.sim.tables import selector_text
from deploy.local.sim.types import Object, ResourceType
from deploy.local.sim.validation import selects
from deploy.local.sim.writes import Writing, update

_STREAMS = ("log", "exec", "attach", "portforward")
_REVIEW_GROUPS = ("authentication.k8s.io", "authorization.k8s.io")


def handle(core: Core, type_: ResourceType, request: Request, target: Target, form: Form) -> Answer:
    """Raises Refused."""
    sub = target.sub.partition("/")[0]
    if sub in _STREAMS:
        return _stream(core, type_, request, target, sub)
    if sub == "scale":
        return _scale(core, type_, request, target)
    if request.method == "POST" and sub == "binding":
        return bind(core, target.namespace, target.name, request.decoded())
    if request.method == "POST" and sub == "eviction":
        return _evict(core, type_, request, target)
    if request.method == "POST" and sub == "token":
        return _token(core, type_, request, target)
    if sub == "proxy":
        raise errors.unavailable("the simulated cluster proxies to nothing")
    raise errors.method_not_allowed()


def _json(status: int, body: Object) -> Response:
    return Response(status, encode(body) + b"\n")


def _stream(core: Core, type_: ResourceType, request: Request, target: Target, sub: str) -> StreamResponse:
    pod = loaded(type_, core.get(type_, target.namespace, target.name))
    names = [c["name"] for c in pod["spec"].get("containers") or ()]
    container = request.query.get("container") or ""
    if sub != "portforward" and not container:
        if len(names) > 1:
            why = f"a container name must be specified for pod {target.name}, choose one of: [{' '.join(names)}]"
            raise errors.bad_request(why)
        container = names[0]
    if container and container not in names:
        raise errors.bad_request(f"container {container} is not valid for pod {target.name}")
    if not pod["spec"].get("nodeName"):
        if sub == "log":
            return StreamResponse("empty", target.namespace or "", target.name, container, request.query)
        raise errors.bad_request(f"pod {target.name} does not have a host assigned")
    phase = (pod.get("status") or {}).get("phase")
    if sub == "log" and phase == "Pending":
        why = f'container "{container}" in pod "{target.name}" is waiting to start: ContainerCreating'
        raise errors.bad_request(why)
    if sub != "log" and phase in ("Succeeded", "Failed"):
        raise errors.internal_plain(
            f"cannot exec into a container in a completed pod; current phase is {phase}"
        )
    return StreamResponse(sub, target.namespace or "", target.name, container, request.query)


def scale_of(type_: ResourceType, obj: Object) -> Object:
    """The autoscaling/v1 Scale of an object."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    paths = type_.scale
    replicas = spec.get("replicas", 0) if paths is None else _at(obj, paths["specReplicasPath"]) or 0
    now = status.get("replicas", 0) if paths is None else _at(obj, paths["statusReplicasPath"]) or 0
    body: Object = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": {"replicas": now},
    }
    selector = spec.get("selector")
    if paths is None and selector:
        body["status"]["selector"] = selector_text(selector)
    elif paths is not None and paths.get("labelSelectorPath"):
        body["status"]["selector"] = _at(obj, paths["labelSelectorPath"]) or ""
    return body


def _at(obj: Any, path: str) -> Any:
    for name in path.strip(".").split("."):
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


def _scale(core: Core, type_: ResourceType, request: Request, target: Target) -> Response:
    obj = loaded(type_, core.get(type_, target.namespace, target.name))
    scale = scale_of(type_, obj)
    if request.method == "GET":
        return _json(200, scale)
    if request.method == "PUT":
        wanted = request.decoded()
    elif request.method == "PATCH":
        kind = request.content_type
        body = decode_body(request.body, kind)
        merges = "json-patch" not in kind
        wanted = merge_patch(scale, body) if merges else patch(type_, scale, kind, body)
    else:
        raise errors.method_not_allowed()
    replicas = (wanted.get("spec") or {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        text = f"Invalid value: {replicas}: must be greater than or equal to 0"
        cause = errors.Cause("FieldValueInvalid", "spec.replicas", text)
        raise errors.invalid("autoscaling", "Scale", target.name, [cause])

    def change(found: Object) -> Object:
        meta = wanted.get("metadata") or {}
        for name in ("resourceVersion", "uid"):
            if meta.get(name):
                found["metadata"][name] = meta[name]
        here, path = (
            found,
            (type_.scale or {}).get("specReplicasPath", ".spec.replicas").strip(".").split("."),
        )
        for name in path[:-1]:
            here = here.setdefault(name, {})
        here[path[-1]] = replicas
        return found

    how = Writing(request.manager, request.query.get("dryRun") == "All")
    state = update(core, type_, target.namespace, target.name, change, how, sub="scale")
    return _json(200, scale_of(type_, loaded(type_, state)))


def bind(core: Core, namespace: str | None, name: str, binding: Object) -> Response:
    """Puts a pod on a node. Raises Refused: 404, 409."""
    pods = core.type("", "v1", "pods")
    node = (binding.get("target") or {}).get("name", "")

    def change(pod: Object) -> Object:
        bound = pod["spec"].get("nodeName")
        if bound:
            why = f'pod {name} is already assigned to node "{bound}"'
            raise errors.conflict("", "pods/binding", name, why)
        pod["spec"]["nodeName"] = node
        conditions = pod.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [c for c in conditions if c["type"] != "PodScheduled"]
        conditions.append({"type": "PodScheduled", "status": "True", "lastProbeTime": None,
                           "lastTransitionTime": core.now()})  # fmt: skip
        return pod

    update(core, pods, namespace, name, change, sub="binding", owned=True)
    return _json(
        201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    )


def _evict(core: Core, type_: ResourceType, request: Request, target: Target) -> Response:
    body = request.decoded()
    if (body.get("metadata") or {}).get("name") != target.name:
        raise errors.bad_request("name in URL does not match name in Eviction object")
    pod = loaded(type_, core.get(type_, target.namespace, target.name))
    budgets = core.collection(core.type("policy", "v1", "poddisruptionbudgets"))
    labels = pod["metadata"].get("labels") or {}
    for key in budgets.each(f"{target.namespace}/"):
        budget = budgets.live[key].object()
        allowed = (budget.get("status") or {}).get("disruptionsAllowed", 0)
        if selects((budget.get("spec") or {}).get("selector"), labels) and allowed <= 0:
            name = budget["metadata"]["name"]
            cause = {
                "reason": "DisruptionBudget",
                "message": f"The disruption budget {name} needs {(budget.get('status') or {}).get('desiredHealthy', 0)} "
                f"healthy pods and has {(budget.get('status') or {}).get('currentHealthy', 0)} currently",
            }
            raise errors.too_many_requests(
                "Cannot evict pod as it would violate the pod's disruption budget.", {"causes": [cause]}
            )
    options = Options.read(body.get("deleteOptions") or {}, {})
    delete(core, type_, target.namespace, target.name, options)
    return _json(
        201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    )


def _token(core: Core, type_: ResourceType, request: Request, target: Target) -> Response:
    account = loaded(type_, core.get(type_, target.namespace, target.name))
    body = request.decoded()
    token = f"sim-{core.random.getrandbits(128):032x}"
    core.tokens[token] = User(
        f"system:serviceaccount:{target.namespace}:{target.name}",
        ("system:serviceaccounts", f"system:serviceaccounts:{target.namespace}", "system:authenticated"),
        account["metadata"]["uid"],
    )
    seconds = (body.get("spec") or {}).get("expirationSeconds") or 3600
    body["status"] = {"token": token, "expirationTimestamp": core.later(seconds)}
    return _json(201, {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", **body})


def virtual(
    core: Core, type_: ResourceType, request: Request, target: Target, body: Object
) -> Response | None:
    """The answer to a create of a type that is not stored; None for all others."""
    if type_.group in _REVIEW_GROUPS:
        answered = reviews.review(core, core.tokens, type_.kind, request.user, body, target.namespace)
        return _json(201, {"kind": type_.kind, "apiVersion": type_.group_version, **answered})
    if type_.plural == "bindings" and not type_.group:
        name = (body.get("metadata") or {}).get("name", "")
        return bind(core, target.namespace, name, body)
    return None
