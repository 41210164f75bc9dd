"""What kube-apiserver refuses (422) in the types that the sim knows well, and names and labels of all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from deploy.local.sim.errors import Cause
from deploy.local.sim.types import Object, ResourceType

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_LABEL_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_QUALIFIED = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_LABEL_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is "
    "'[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_QUALIFIED_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_TEMPLATED = ("daemonsets", "deployments", "replicasets", "statefulsets", "jobs")


def required(field: str, text: str = "") -> Cause:
    return Cause("FieldValueRequired", field, f"Required value: {text}" if text else "Required value")


def invalid_value(field: str, value: str, text: str) -> Cause:
    return Cause("FieldValueInvalid", field, f'Invalid value: "{value}": {text}')


def check_name(type_: ResourceType, name: str) -> Iterator[Cause]:
    """The rule of the type's names."""
    if type_.group == "rbac.authorization.k8s.io":
        yield from _path_segment(name)
    elif type_.plural == "namespaces":
        yield from _matching(name, _LABEL, _LABEL_TEXT, 63)
    elif type_.plural == "services" and not type_.custom:
        yield from _matching(name, _LABEL_1035, _LABEL_1035_TEXT, 63)
    else:
        yield from _matching(name, _SUBDOMAIN, _SUBDOMAIN_TEXT, 253)


def _path_segment(name: str) -> Iterator[Cause]:
    for bad in ("/", "%"):
        if bad in name:
            yield invalid_value("metadata.name", name, f"may not contain '{bad}'")
    if name in (".", ".."):
        yield invalid_value("metadata.name", name, f"may not be '{name}'")


def _matching(name: str, pattern: re.Pattern[str], text: str, longest: int) -> Iterator[Cause]:
    if len(name) > longest:
        yield invalid_value("metadata.name", name, f"must be no more than {longest} characters")
    if not pattern.match(name):
        yield invalid_value("metadata.name", name, text)


def check_metadata(meta: Mapping[str, Any]) -> Iterator[Cause]:
    """Labels, annotations, owners."""
    yield from check_labels(meta.get("labels") or {}, "metadata.labels")
    for key in meta.get("annotations") or {}:
        yield from _qualified(key.lower(), "metadata.annotations", key)
    for number, owner in enumerate(meta.get("ownerReferences") or ()):
        field = f"metadata.ownerReferences[{number}]"
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                yield invalid_value(f"{field}.{name}", "", "must not be empty")


def check_labels(labels: Mapping[str, str], field: str) -> Iterator[Cause]:
    for key, value in labels.items():
        yield from _qualified(key, field, key)
        if value and (len(value) > 63 or not _QUALIFIED.match(value)):
            text = "must be no more than 63 characters" if len(value) > 63 else _VALUE_TEXT
            yield invalid_value(field, value, text)


def _qualified(key: str, field: str, shown: str) -> Iterator[Cause]:
    prefix, slash, name = key.rpartition("/")
    if slash and (not _SUBDOMAIN.match(prefix) or len(prefix) > 253):
        yield invalid_value(field, shown, f"prefix part {_SUBDOMAIN_TEXT}")
    if not name:
        yield invalid_value(field, shown, "name part must be non-empty")
    elif len(name) > 63:
        yield invalid_value(field, shown, "name part must be no more than 63 bytes")
    if not _QUALIFIED.match(name):
        yield invalid_value(field, shown, _QUALIFIED_TEXT)


def check_content(type_: ResourceType, obj: Object) -> Iterator[Cause]:
    """What the workload types require of their spec."""
    if type_.custom:
        return
    if type_.plural == "pods":
        yield from _pod_spec(obj.get("spec") or {}, "spec")
    elif type_.group in ("apps", "batch") and type_.plural in _TEMPLATED:
        yield from _templated(type_, obj.get("spec") or {})


def _templated(type_: ResourceType, spec: Mapping[str, Any]) -> Iterator[Cause]:
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    replicas = spec.get("replicas")
    if isinstance(replicas, int) and replicas < 0:
        yield Cause(
            "FieldValueInvalid",
            "spec.replicas",
            f"Invalid value: {replicas}: must be greater than or equal to 0",
        )
    if type_.plural != "jobs":
        selector = spec.get("selector")
        if selector is None:
            yield required("spec.selector")
        if not selects(selector, labels):
            said = _shown(labels)
            yield Cause(
                "FieldValueInvalid",
                "spec.template.metadata.labels",
                f"Invalid value: {said}: `selector` does not match template `labels`",
            )
    yield from _pod_spec(template.get("spec") or {}, "spec.template.spec")


def _shown(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'"{key}":"{labels[key]}"' for key in sorted(labels)) + "}"


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_expression(term, labels) for term in selector.get("matchExpressions") or ())


def _expression(term: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, operator = labels.get(term["key"]), term["operator"]
    if operator == "In":
        return bool(value in term.get("values", ()))
    if operator == "NotIn":
        return bool(value not in term.get("values", ()))
    return bool(value is not None) is (operator == "Exists")


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a metav1.LabelSelector takes these labels; None takes nothing."""
    return selector is not None and _selects(selector, labels)


def _pod_spec(spec: Mapping[str, Any], field: str) -> Iterator[Cause]:
    containers = spec.get("containers") or []
    if not containers:
        yield required(f"{field}.containers")
    seen = set()
    for number, container in enumerate(containers):
        at = f"{field}.containers[{number}]"
        name = container.get("name", "")
        if not name:
            yield required(f"{at}.name")
        elif name in seen:
            yield Cause("FieldValueDuplicate", f"{at}.name", f'Duplicate value: "{name}"')
        elif not _LABEL.match(name):
            yield invalid_value(f"{at}.name", name, _LABEL_TEXT)
        seen.add(name)
        if not container.get("image"):
            yield required(f"{at}.image")
    policy = spec.get("restartPolicy", "Always")
    if policy not in ("Always", "OnFailure", "Never"):
        text = f'Unsupported value: "{policy}": supported values: "Always", "Never", "OnFailure"'
        yield Cause("FieldValueNotSupported", f"{field}.restartPolicy", text)
