"""What a provider is.

A provider publishes complete readings; the registry compares them with what it knows. So a provider holds no
state that could be missed, and engaging twice is the same as once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from services.common.kube.credentials import Credentials
from services.common.kube.kubeconfig import KubeconfigError, digest, parse, single
from services.common.kube.shape import Shape, shape_of

MAX_EMBEDDED = 1024 * 1024
LOCAL_KEYS = (
    "certificate-authority", "client-certificate", "client-key", "tokenFile", "exec", "auth-provider",
)  # fmt: skip
"""What is read or run on discovery's own machine."""


@dataclass(frozen=True, slots=True)
class Found:
    """A cluster that a provider knows how to reach."""

    name: str
    kubeconfig: Mapping[str, Any]
    """Of one context, files inlined."""
    source: str
    """Where it was found, for people; the same over restarts."""
    labels: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    """Why its source cannot be read now: this is what was read last."""
    digest: str = ""

    @property
    def server(self) -> str:
        """Address of its apiserver."""
        return str(self.kubeconfig["clusters"][0]["cluster"]["server"])

    @property
    def place(self) -> tuple[str, Shape]:
        """The same for the same cluster: the server, and what of it is the cluster."""
        return self.server, shape_of(self.kubeconfig)


def found(
    name: str,
    kubeconfig: Mapping[str, Any],
    source: str,
    labels: Mapping[str, str] | None = None,
    problem: str = "",
) -> Found:
    """Make a Found with its digest."""
    return Found(name, kubeconfig, source, dict(labels or {}), problem, digest(kubeconfig))


def usable(config: Mapping[str, Any], context: str | None, base: Path) -> dict[str, Any]:
    """Return the kubeconfig of one context, files inlined; KubeconfigError where no client can be made of it."""
    kubeconfig = single(config, context, base=base, inline_token=True)
    Credentials(kubeconfig)
    return kubeconfig


def embedded(data: bytes) -> dict[str, Any]:
    """Return the single context of a kubeconfig that comes from elsewhere: a caller, a Secret, a remote provider.

    KubeconfigError where no client can be made of it. Files, token files and plugins of a stranger's choice are
    refused: they would be read or run here, and what they hold sent to a server of the stranger's choice.
    """
    if not data:
        raise KubeconfigError("is empty")
    if len(data) > MAX_EMBEDDED:
        raise KubeconfigError("is larger than 1 MiB")
    config = parse(data)
    for section, key in (("clusters", "cluster"), ("users", "user")):
        for entry in config[section]:
            body = entry.get(key) or {}
            for name in LOCAL_KEYS:
                if isinstance(body, dict) and body.get(name):
                    raise KubeconfigError(f"{section} {entry['name']!r}: {name} is not allowed here; embed the data")
    kubeconfig = single(config)
    Credentials(kubeconfig)
    return kubeconfig


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a source that a person should look at."""

    source: str
    message: str


@dataclass(frozen=True, slots=True)
class Reading:
    """All that a provider knows now."""

    clusters: tuple[Found, ...]
    problems: tuple[Problem, ...] = ()
    unreadable: tuple[str, ...] = ()
    """Sources, or what sources begin with, that could not be read: clusters known from there stay. See `is_unread`."""
    complete: bool = True
    """False before the first complete reading: this one only says why there is none yet."""


def is_unread(source: str, unreadable: Iterable[str]) -> bool:
    """Whether a source is one of these or below one: `/k/a.yaml#prod` is below `/k` and `/k/a.yaml#`, not below `/k/a.yaml#p`."""
    for beginning in unreadable:
        rest = source.removeprefix(beginning)
        if not beginning or source == beginning:
            return True
        if rest != source and (beginning[-1] in "#:/" or rest[0] in "#/"):
            return True
    return False


def unread(source: str, message: str) -> Reading:
    """Say why nothing could be read so far: clusters known from before the restart stay."""
    return Reading((), (Problem(source, message),), ("",), complete=False)


Publish = Callable[[Reading], None]


class Provider(Protocol):
    """Runs in one task of its own."""

    id: str
    """`type`, or `type#name` where there are several."""

    async def run(self, publish: Publish) -> None:
        """Publish a first complete reading as soon as it is there, then one after every change."""


@runtime_checkable
class Rereads(Protocol):
    """A provider that reads credentials now and then, and is told when it should at once."""

    def refused(self, source: str) -> None:
        """A cluster does not take the credentials that were found at `source`; must not block."""
