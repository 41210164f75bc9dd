"""The columns that `kubectl get` shows, as the API server's printers compute them.

Source: k8s.io/kubernetes pkg/printers/internalversion; CRDs by their additionalPrinterColumns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.local.sim.jsonpath import first
from deploy.local.sim.timers import parse_timestamp
from deploy.local.sim.types import Object, ResourceType

Column = dict[str, Any]
Cells = list[Any]

_NAME = (
    "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a "
    "client to request the generation of an appropriate name automatically. Name is primarily intended for creation "
    "idempotence and configuration definition. Cannot be updated. More info: "
    "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names"
)
_CREATED = (
    "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed "
    "to be set in happens-before order across separate operations. Clients may not set this value. It is represented "
    "in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: "
    "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"
)


def _column(
    name: str, type_: str = "string", priority: int = 0, format_: str = "", description: str = ""
) -> Column:
    return {"name": name, "type": type_, "format": format_, "description": description, "priority": priority}


def _named(*columns: Column) -> list[Column]:
    return [_column("Name", format_="name", description=_NAME), *columns]


_AGE = _column("Age")


def columns(type_: ResourceType) -> list[Column]:
    """The Table's column definitions."""
    if type_.custom:
        return _custom_columns(type_)
    found = _PRINTERS.get(type_.collection)
    if found is not None:
        return found[0]
    return _named(_column("Created At", "date", description=_CREATED))


def cells(type_: ResourceType, obj: Object, now: float) -> tuple[Cells, list[dict[str, Any]]]:
    """(one value per column, the row's conditions); ages as of `now`."""
    meta = obj["metadata"]
    if type_.custom:
        values = [_custom_value(obj, column) for column in _printer_columns(type_)]
        return [meta["name"], *(_resolve(value, now) for value in values)], []
    found = _PRINTERS.get(type_.collection)
    if found is None:
        return [meta["name"], meta.get("creationTimestamp")], []
    values = [_resolve(value, now) for value in found[1](obj)]
    return (values if type_.collection == "events" else [meta["name"], *values]), _conditions(type_, obj)


def _resolve(value: Any, now: float) -> Any:
    """Ages and durations as words; everything else as it is."""
    if isinstance(value, _Since):
        if not value.start:
            return "<unknown>"
        end = parse_timestamp(value.end) if value.end else now
        return human_duration(end - parse_timestamp(value.start))
    return value


@dataclass(frozen=True)
class _Since:
    """A time span from one RFC 3339 time to another, or to now."""

    start: str
    end: str = ""


def human_duration(seconds: float) -> str:
    """As k8s.io/apimachinery's duration.HumanDuration: 5s, 3m12s, 4h, 2d3h."""
    if seconds < -1:
        return "<invalid>"
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"


def empty_cells(type_: ResourceType) -> Cells:
    """The cells of a bookmark's row: those of an object without anything in it."""
    hollow = {"metadata": {"name": ""}, "spec": {"template": {}}, "status": {}}
    return cells(type_, hollow, 0)[0]


def _conditions(type_: ResourceType, obj: Object) -> list[dict[str, Any]]:
    if type_.collection != "pods":
        return []
    phase = (obj.get("status") or {}).get("phase")
    if phase == "Succeeded":
        message = "The pod has completed successfully."
    elif phase == "Failed":
        message = "The pod failed."
    else:
        return []
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


_DEFAULT_CUSTOM = ({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},)


def _printer_columns(type_: ResourceType) -> tuple[Mapping[str, Any], ...]:
    return type_.columns or _DEFAULT_CUSTOM


def _custom_columns(type_: ResourceType) -> list[Column]:
    found = []
    for column in _printer_columns(type_):
        description = (
            column.get("description")
            or f"Custom resource definition column (in JSONPath format): {column['jsonPath']}"
        )
        if column is _DEFAULT_CUSTOM[0]:
            description = _CREATED
        found.append(
            _column(
                column["name"],
                column["type"],
                column.get("priority", 0),
                column.get("format", ""),
                description,
            )
        )
    return _named(*found)


def _custom_value(obj: Object, column: Mapping[str, Any]) -> Any:
    value = first(obj, column["jsonPath"])
    if value is None:
        return None
    if column["type"] == "date":
        return _Since(str(value))
    if column["type"] == "string" and not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return value


def _age(obj: Object) -> _Since:
    return _Since(obj["metadata"].get("creationTimestamp", ""))


def _pod(obj: Object) -> Cells:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ready = sum(1 for one in statuses if one.get("ready"))
    total = len(spec.get("containers") or ())
    restarts = sum(one.get("restartCount", 0) for one in statuses)
    gates = spec.get("readinessGates") or []
    return [
        f"{ready}/{total}",
        _pod_reason(obj, spec, status, statuses),
        str(restarts),
        _age(obj),
        (status.get("podIPs") or [{}])[0].get("ip") or status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        f"0/{len(gates)}" if gates else "<none>",
    ]


def _pod_reason(
    obj: Object, spec: Mapping[str, Any], status: Mapping[str, Any], statuses: list[dict[str, Any]]
) -> str:
    reason: str = status.get("reason") or status.get("phase") or ""
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            reason = "SchedulingGated"
    running = False
    for one in reversed(statuses):
        state = one.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason"):
            reason = waiting["reason"]
        elif ended and ended.get("reason"):
            reason = ended["reason"]
        elif ended:
            code = ended.get("exitCode", 0)
            reason = f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{code}"
        elif one.get("ready") and state.get("running") is not None:
            running = True
    if reason == "Completed" and running:
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
        reason = "Running" if ready else "NotReady"
    if (
        obj["metadata"].get("deletionTimestamp")
        and reason not in ("Failed", "Succeeded")
        and status.get("phase") not in ("Failed", "Succeeded")
    ):
        reason = "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _images(template: Mapping[str, Any]) -> tuple[str, str]:
    containers = (template.get("spec") or {}).get("containers") or []
    return ",".join(c["name"] for c in containers), ",".join(c.get("image", "") for c in containers)


def selector_text(selector: Mapping[str, Any] | None) -> str:
    """metav1.FormatLabelSelector."""
    if selector is None:
        return "<none>"
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or ():
        values = ",".join(sorted(term.get("values") or ()))
        words = {"In": f"{term['key']} in ({values})", "NotIn": f"{term['key']} notin ({values})",
                 "Exists": term["key"], "DoesNotExist": f"!{term['key']}"}  # fmt: skip
        terms.append(words[term["operator"]])
    return ",".join(terms) or "<none>"


def _deployment(obj: Object) -> Cells:
    spec, status = obj["spec"], obj.get("status") or {}
    names, images = _images(spec["template"])
    return [
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        _age(obj),
        names,
        images,
        selector_text(spec.get("selector")),
    ]


def _replica_set(obj: Object) -> Cells:
    spec, status = obj["spec"], obj.get("status") or {}
    names, images = _images(spec["template"])
    return [
        spec.get("replicas", 0),
        status.get("replicas", 0),
        status.get("readyReplicas", 0),
        _age(obj),
        names,
        images,
        selector_text(spec.get("selector")),
    ]


def _stateful_set(obj: Object) -> Cells:
    spec, status = obj["spec"], obj.get("status") or {}
    names, images = _images(spec["template"])
    return [f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}", _age(obj), names, images]


def _daemon_set(obj: Object) -> Cells:
    spec, status = obj["spec"], obj.get("status") or {}
    names, images = _images(spec["template"])
    nodes = (spec["template"].get("spec") or {}).get("nodeSelector")
    return [
        status.get("desiredNumberScheduled", 0),
        status.get("currentNumberScheduled", 0),
        status.get("numberReady", 0),
        status.get("updatedNumberScheduled", 0),
        status.get("numberAvailable", 0),
        ",".join(f"{key}={value}" for key, value in sorted((nodes or {}).items())) or "<none>",
        _age(obj),
        names,
        images,
        selector_text(spec.get("selector")),
    ]


def _job(obj: Object) -> Cells:
    spec, status = obj["spec"], obj.get("status") or {}
    names, images = _images(spec["template"])
    done = status.get("succeeded", 0)
    if spec.get("completions") is not None:
        completions = f"{done}/{spec['completions']}"
    elif spec.get("parallelism", 0) > 1:
        completions = f"{done}/1 of {spec['parallelism']}"
    else:
        completions = f"{done}/1"
    state = "Running"
    for condition in status.get("conditions") or ():
        if condition["status"] == "True":
            named = {"Complete": "Complete", "Failed": "Failed", "Suspended": "Suspended",
                     "SuccessCriteriaMet": "SuccessCriteriaMet", "FailureTarget": "FailureTarget"}  # fmt: skip
            state = named.get(condition["type"], state)
    if obj["metadata"].get("deletionTimestamp"):
        state = "Terminating"
    return [
        state,
        completions,
        _duration(status),
        _age(obj),
        names,
        images,
        selector_text(spec.get("selector")),
    ]


def _duration(status: Mapping[str, Any]) -> _Since | str:
    if not status.get("startTime"):
        return ""
    return _Since(status["startTime"], status.get("completionTime", ""))


def _node(obj: Object) -> Cells:
    meta, status, spec = obj["metadata"], obj.get("status") or {}, obj.get("spec") or {}
    words = [
        "Ready" if c["status"] == "True" else "NotReady"
        for c in status.get("conditions") or ()
        if c["type"] == "Ready"
    ] or ["Unknown"]
    if spec.get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = sorted(key.removeprefix(prefix) for key in meta.get("labels") or {} if key.startswith(prefix))
    info = status.get("nodeInfo") or {}
    addresses = {a["type"]: a["address"] for a in reversed(status.get("addresses") or [])}
    return [
        ",".join(words),
        ",".join(roles) or "<none>",
        _age(obj),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def _service(obj: Object) -> Cells:
    spec = obj.get("spec") or {}
    kind = spec.get("type", "")
    if kind == "ExternalName":
        external = spec.get("externalName", "<none>")
    elif not kind:
        external = "<unknown>"
    elif kind == "LoadBalancer":
        external = "<pending>"
    else:
        external = ",".join(spec.get("externalIPs") or ()) or "<none>"
    ports = ",".join(
        f"{port['port']}:{port['nodePort']}/{port.get('protocol', 'TCP')}" if port.get("nodePort")
        else f"{port['port']}/{port.get('protocol', 'TCP')}"
        for port in spec.get("ports") or ()
    )  # fmt: skip
    selector = ",".join(f"{key}={value}" for key, value in sorted((spec.get("selector") or {}).items()))
    return [
        kind,
        spec.get("clusterIP") or "<none>",
        external,
        ports or "<none>",
        _age(obj),
        selector or "<none>",
    ]


def _event(obj: Object) -> Cells:
    about, source = obj.get("involvedObject") or obj.get("regarding") or {}, obj.get("source") or {}
    last = obj.get("lastTimestamp") or obj.get("eventTime") or obj["metadata"].get("creationTimestamp", "")
    first_time = obj.get("firstTimestamp") or obj.get("eventTime") or last
    who = obj.get("reportingComponent") or source.get("component", "")
    where = source.get("host") or obj.get("reportingInstance", "")
    return [
        _Since(last),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{who}, {where}" if where else who,
        str(obj.get("message") or obj.get("note") or "").strip(),
        _Since(first_time),
        obj.get("count", 1),
        obj["metadata"]["name"],
    ]


_WORKLOAD = (
    _column("Containers", priority=1), _column("Images", priority=1), _column("Selector", priority=1),
)  # fmt: skip
_PRINTERS: dict[str, tuple[list[Column], Callable[[Object], Cells]]] = {
    "pods": (
        _named(
            _column("Ready"), _column("Status"), _column("Restarts"), _AGE, _column("IP", priority=1),
            _column("Node", priority=1), _column("Nominated Node", priority=1), _column("Readiness Gates", priority=1),
        ),
        _pod,
    ),
    "deployments.apps": (
        _named(_column("Ready"), _column("Up-to-date"), _column("Available"), _AGE, *_WORKLOAD),
        _deployment,
    ),
    "replicasets.apps": (
        _named(_column("Desired", "integer"), _column("Current", "integer"), _column("Ready", "integer"), _AGE,
               *_WORKLOAD),
        _replica_set,
    ),
    "statefulsets.apps": (_named(_column("Ready"), _AGE, *_WORKLOAD[:2]), _stateful_set),
    "daemonsets.apps": (
        _named(*(_column(name, "integer") for name in ("Desired", "Current", "Ready", "Up-to-date", "Available")),
               _column("Node Selector"), _AGE, *_WORKLOAD),
        _daemon_set,
    ),
    "jobs.batch": (
        _named(_column("Status"), _column("Completions"), _column("Duration"), _AGE, *_WORKLOAD),
        _job,
    ),
    "nodes": (
        _named(
            _column("Status"), _column("Roles"), _AGE, _column("Version"), _column("Internal-IP", priority=1),
            _column("External-IP", priority=1), _column("OS-Image", priority=1), _column("Kernel-Version", priority=1),
            _column("Container-Runtime", priority=1),
        ),
        _node,
    ),
    "services": (
        _named(_column("Type"), _column("Cluster-IP"), _column("External-IP"), _column("Port(s)"), _AGE,
               _column("Selector", priority=1)),
        _service,
    ),
    "namespaces": (_named(_column("Status"), _AGE), lambda o: [(o.get("status") or {}).get("phase", ""), _age(o)]),
    "configmaps": (
        _named(_column("Data"), _AGE), lambda o: [len(o.get("data") or {}) + len(o.get("binaryData") or {}), _age(o)],
    ),
    "secrets": (
        _named(_column("Type"), _column("Data"), _AGE),
        lambda o: [o.get("type", ""), len(o.get("data") or {}), _age(o)],
    ),
    "serviceaccounts": (_named(_column("Secrets"), _AGE), lambda o: [len(o.get("secrets") or ()), _age(o)]),
    "leases.coordination.k8s.io": (
        _named(_column("Holder"), _AGE), lambda o: [(o.get("spec") or {}).get("holderIdentity", ""), _age(o)],
    ),
    "controllerrevisions.apps": (
        _named(_column("Controller"), _column("Revision"), _AGE),
        lambda o: [_controller(o), o.get("revision", 0), _age(o)],
    ),
    "events": (
        [_column("Last Seen"), _column("Type"), _column("Reason"), _column("Object"), _column("Subobject", priority=1),
         _column("Source", priority=1), _column("Message"), _column("First Seen", priority=1),
         _column("Count", priority=1), _column("Name", priority=1, format_="name", description=_NAME)],
        _event,
    ),
}  # fmt: skip


def _controller(obj: Object) -> str:
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            group = owner["apiVersion"].rpartition("/")[0]
            kind = f"{owner['kind'].lower()}.{group}" if group else owner["kind"].lower()
            return f"{kind}/{owner['name']}"
    return "<none>"
