"""One YAML document to JSON as Kubernetes reads it. Run as a program it reads stdin, with little memory and time.

Kubernetes' YAML is JSON's types and no more: `22:22` and `2025-01-01` are text, `1e3` is a number.
"""

from __future__ import annotations

import re
import resource
import sys
from typing import Any

import msgspec
import yaml

MAX_JSON = 3 * 1024 * 1024
"""Bytes of an object that API servers take."""
MEMORY = 1024 * 1024 * 1024
CPU_SECONDS = 20
OK, NO_YAML, TOO_LARGE = 0, 3, 4
MAX_DIGITS = 100

_C_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast; same rules
_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$")


class NoYaml(ValueError):
    """It is none, or says what JSON cannot."""


class TooLarge(ValueError):
    """It stands for more than API servers take."""


class Loader(_C_LOADER):  # type: ignore[misc]
    """A loader whose plain values are those of JSON."""


def _number(loader: Any, node: Any, kind: str) -> Any:
    text = loader.construct_scalar(node)
    pattern = _INT if kind == "int" else _FLOAT
    if len(text) > MAX_DIGITS or not pattern.match(text) or "inf" in text.lower() or "nan" in text.lower():
        raise yaml.constructor.ConstructorError(None, None, f"{text[:40]!r} is no number that JSON has", node.start_mark)
    make = loader.construct_yaml_int if kind == "int" else loader.construct_yaml_float
    return make(node)


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (f"{_TAG}int", f"{_TAG}float", f"{_TAG}timestamp")]
    for first, found in _C_LOADER.yaml_implicit_resolvers.items()
}
for _kind, _pattern, _first in (("int", _INT, "-+0123456789"), ("float", _FLOAT, "-+0123456789.")):
    Loader.add_implicit_resolver(f"{_TAG}{_kind}", _pattern, list(_first))
    Loader.add_constructor(f"{_TAG}{_kind}", lambda loader, node, kind=_kind: _number(loader, node, kind))


def convert(body: bytes) -> bytes:
    """The document as JSON; NoYaml, TooLarge."""
    try:
        loaded = yaml.load(body, Loader)
        _require_small(loaded)
        made = msgspec.json.encode(loaded)
    except TooLarge:
        raise
    except MemoryError:
        raise TooLarge(_too_large()) from None
    except (yaml.YAMLError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NoYaml(str(error)) from error
    if len(made) > MAX_JSON:
        raise TooLarge(_too_large())
    return made


def _require_small(loaded: Any) -> None:
    """TooLarge for a document that its aliases blow up: a few lines of YAML can stand for gigabytes of JSON."""
    left = MAX_JSON
    todo = [loaded]
    while todo:
        one = todo.pop()
        left -= 1
        if isinstance(one, dict):
            todo += one
            todo += one.values()
        elif isinstance(one, list | tuple | set):
            todo += one
        elif isinstance(one, str | bytes):
            left -= len(one)
        if left < len(todo):
            raise TooLarge(_too_large())


def _too_large() -> str:
    return f"Request entity too large: limit is {MAX_JSON}"


def main() -> int:
    """Convert stdin to stdout; what is wrong is said there, too."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    try:
        answer, code = convert(sys.stdin.buffer.read()), OK
    except NoYaml as error:
        answer, code = str(error)[:1000].encode(), NO_YAML
    except TooLarge as error:
        answer, code = str(error).encode(), TOO_LARGE
    sys.stdout.buffer.write(answer)
    return code


if __name__ == "__main__":
    sys.exit(main())
