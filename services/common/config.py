"""Configuration of a service: defaults < YAML file < environment < flags, decoded into msgspec Structs.

Keys are camelCase: `tls.cert` is `tls: {cert: …}` in the file, `--tls.cert` as a flag and
`RECLOCK_<SERVICE>_TLS_CERT` in the environment. What is unknown or wrong is refused in one line, with
the key's path and the allowed values.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import yaml

from services.common.decode import ConfigError, StrictLoader, convert, fields, read_yaml, struct_of

__all__ = [
    "TLS", "ConfigError", "Host", "KeyPair", "ServiceConfig", "UserFacingConfig", "UserPort", "check_listen", "convert", "dump", "gather", "is_loopback",
    "load", "redact", "snake", "split_address", "usage",
]  # fmt: skip

T = TypeVar("T", bound=msgspec.Struct)

SECRET_WORDS = ("password", "token", "secret")


class TLS(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Files of mutual TLS: all or none of them."""

    cert: str = ""
    """PEM certificate chain."""
    key: str = ""
    """PEM private key."""
    ca: str = ""
    """PEM certificates that peers are checked against."""

    def __bool__(self) -> bool:
        return bool(self.cert and self.key and self.ca)

    def __post_init__(self) -> None:
        given = {"cert": self.cert, "key": self.key, "ca": self.ca}
        missing = [name for name, value in given.items() if not value]
        if missing and len(missing) < 3:
            raise ValueError(f"cert, key and ca go together; missing: {', '.join(missing)}")


class KeyPair(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Serving certificate: paths of PEM files, both or none."""

    cert: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if bool(self.cert) != bool(self.key):
            raise ValueError("cert and key go together")


class UserPort(NamedTuple):
    """The port for users: where it listens, and its certificate."""

    address: str
    cert: str
    key: str


class Host(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Access to the host cluster."""

    kubeconfig: str = ""
    """Path of a kubeconfig; "" is the service account of the pod that this runs in."""


class ServiceConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Keys that every service has."""

    grpc_address: str = "127.0.0.1:0"
    """Address of the gRPC server, `host:port`; port 0 takes a free one."""
    http_address: str = "127.0.0.1:0"
    """Address of /livez, /readyz and /metrics; "" is off."""
    tls: TLS = msgspec.field(default_factory=TLS)
    """Service to service; without it plaintext is allowed on loopback only."""
    host: Host = msgspec.field(default_factory=Host)
    otlp_endpoint: str = ""
    """OTLP gRPC endpoint of traces, for example `http://127.0.0.1:4317`; "" is off."""
    trace_ratio: float = 0.05
    """Part of the traces that is kept, 0 to 1, where the caller's own context does not say. The same in all services."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    def __post_init__(self) -> None:
        check_listen("grpcAddress", self.grpc_address)
        if not self.tls and not is_loopback(self.grpc_address):
            raise ValueError(
                f"grpcAddress {self.grpc_address!r} is reachable from outside: set tls.cert, tls.key and "
                "tls.ca, or listen on 127.0.0.1 or [::1]"
            )
        if self.http_address:
            check_listen("httpAddress", self.http_address)
        if not 0 <= self.trace_ratio <= 1:
            raise ValueError(f"traceRatio: {self.trace_ratio} is not allowed; 0 to 1 is")


class UserFacingConfig(ServiceConfig, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Keys of a service that people, tools and workers call over gRPC as well as other services do."""

    user_address: str = ""
    """Address of gRPC for everybody who has a bearer token: TLS of the server alone, and the host's RBAC; "" is off."""
    user_tls: KeyPair = msgspec.field(default_factory=KeyPair)
    """Its certificate; that of `tls` when empty."""
    review_seconds: float = 60.0
    """A stream of answers is judged again so often, 1 to 3600: its token may have ended, or a right been taken away."""
    review_patience: float = 600.0
    """How long a stream goes on, in seconds, while the host cannot be asked; 0 to 86400."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, value, low, high in (
            ("reviewSeconds", self.review_seconds, 1, 3600), ("reviewPatience", self.review_patience, 0, 86400),
        ):  # fmt: skip
            if not low <= value <= high:
                raise ValueError(f"{key}: {value} is out of range; allowed: {low} to {high}")
        if self.user_address:
            check_listen("userAddress", self.user_address)
            if not (self.user_tls.cert or self.tls):
                raise ValueError("userAddress: tokens travel over TLS only: set userTls.cert and userTls.key, or tls")

    def user_port(self) -> UserPort | None:
        """Where users are served, if they are."""
        pair = self.user_tls if self.user_tls.cert else self.tls
        return UserPort(self.user_address, pair.cert, pair.key) if self.user_address else None


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`; ValueError says what is wrong."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address; allowed: host:port, [v6]:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def check_listen(key: str, address: str) -> None:
    """ValueError, naming the key, for what nobody can listen on."""
    try:
        split_address(address)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches `address` (`host:port` or `unix:path`)."""
    if address.startswith("unix:"):
        return True
    try:
        host = split_address(address)[0]
    except ValueError:
        host = address
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


KeyPath = tuple[str, ...]


def _leaves(struct: type[msgspec.Struct], path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, annotation) of every key that a flag can set."""
    for name, kind in fields(struct).items():
        inner = struct_of(kind)
        if inner is not None:
            yield from _leaves(inner, (*path, name))
        else:
            yield (*path, name), kind


def snake(name: str) -> str:
    """camelCase -> snake_case."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def _set(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for key in path[:-1]:
        inner = data.get(key)
        if not isinstance(inner, dict):
            inner = data[key] = {}
        data = inner
    data[path[-1]] = value


def _parse(kind: Any, text: str, where: str) -> Any:
    """Turn a flag's or variable's text into a value for `kind`; structures are written as YAML."""
    if kind is str or typing.get_origin(kind) is Literal:
        return text
    if typing.get_origin(kind) in (list, tuple) and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        return yaml.load(text, StrictLoader)
    except yaml.YAMLError:
        raise ConfigError(f"{where}: {text!r} is no YAML") from None


def _flags(struct: type[msgspec.Struct], argv: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split the command line into {key path: text} and the actions (`--help`, `--print-config`)."""
    known = {".".join(path) for path, _ in _leaves(struct)} | {"config"}
    alias = {snake(name).replace("_", "-"): name for name in known}
    given: dict[str, str] = {}
    actions: list[str] = []
    rest = list(argv)
    while rest:
        arg = rest.pop(0)
        if arg in ("--help", "-h", "--print-config"):
            actions.append(arg.lstrip("-"))
            continue
        if not arg.startswith("--"):
            raise ConfigError(f"{arg}: unexpected; allowed: --key value, --config FILE, --print-config")
        name, equals, value = arg[2:].partition("=")
        name = name if name in known else alias.get(name, name)
        if name not in known:
            allowed = ", ".join(f"--{key}" for key in sorted(known))
            raise ConfigError(f"--{name}: unknown flag; allowed: {allowed}")
        if not equals:
            if not rest:
                raise ConfigError(f"--{name}: needs a value")
            value = rest.pop(0)
        given[name] = value
    return given, actions


def gather(
    struct: type[T], service: str, argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[T, list[str]]:
    """Put the four sources together; return the configuration and the actions asked for."""
    flags, actions = _flags(struct, argv)
    prefix = f"RECLOCK_{service.upper().replace('-', '_')}_"
    path = flags.pop("config", environ.get(f"{prefix}CONFIG", ""))
    if {"help", "h"} & set(actions):
        return typing.cast(T, None), ["help"]
    data = read_yaml(path) if path else {}
    leaves = dict(_leaves(struct))
    for leaf, kind in leaves.items():
        variable = prefix + "_".join(snake(part) for part in leaf).upper()
        if variable in environ:
            _set(data, leaf, _parse(kind, environ[variable], variable))
    for name, text in flags.items():
        leaf = tuple(name.split("."))
        _set(data, leaf, _parse(leaves[leaf], text, f"--{name}"))
    return convert(struct, data), actions


def redact(value: Any, key: str = "") -> Any:
    """Return `value` as plain data with what may be secret replaced."""
    if isinstance(value, Mapping):
        return {name: redact(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redact(inner, key) for inner in value]
    if isinstance(value, str) and value and any(word in key.lower() for word in SECRET_WORDS):
        return "<redacted>"
    if isinstance(value, str) and "://" in value and "@" in value:
        scheme, _, rest = value.partition("://")
        return f"{scheme}://<redacted>@{rest.rpartition('@')[2]}"
    return value


def dump(config: msgspec.Struct) -> str:
    """Return the effective configuration as YAML, secrets redacted."""
    return yaml.safe_dump(redact(msgspec.to_builtins(config)), sort_keys=False)


def usage(struct: type[msgspec.Struct], service: str) -> str:
    """Return the help text: every flag, its default and its variable."""
    lines = [f"usage: reclock-{service} [--config FILE] [--key value ...] [--print-config]", ""]
    for path, kind in _leaves(struct):
        variable = f"RECLOCK_{service.upper()}_" + "_".join(snake(part) for part in path).upper()
        choices = ", ".join(map(str, typing.get_args(kind))) if typing.get_origin(kind) is Literal else ""
        lines.append(f"  --{'.'.join(path):<28} {variable}" + (f"  ({choices})" if choices else ""))
    return "\n".join(lines)


def load(struct: type[T], service: str, argv: Sequence[str] | None = None) -> T:
    """Return the configuration of `service`, or leave the process.

    `--help` and `--print-config` print and exit 0; a wrong configuration prints one line and exits 2.
    """
    try:
        config, actions = gather(struct, service, sys.argv[1:] if argv is None else argv, os.environ)
    except ConfigError as error:
        print(f"reclock-{service}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if "help" in actions:
        print(usage(struct, service))
        raise SystemExit(0)
    if "print-config" in actions:
        print(dump(config), end="")
        raise SystemExit(0)
    return config
