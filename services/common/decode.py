"""Strict decoding of plain data into msgspec Structs: what is wrong is named by its path, with what is allowed."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

import msgspec
import yaml

T = TypeVar("T", bound=msgspec.Struct)


class ConfigError(Exception):
    """What is wrong with the configuration, in one line: the key's path and the allowed values."""


class StrictLoader(yaml.SafeLoader):
    """YAML that refuses a key given twice, of which plain YAML silently keeps the last."""


def _mapping(loader: StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, str) and key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} is given twice", key_node.start_mark
            )
        if isinstance(key, str):
            seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def read_yaml(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            data = yaml.load(file, StrictLoader)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--config {path}: not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1} column {mark.column + 1}:" if mark else ""
        raise ConfigError(f"--config {path}:{where} {getattr(error, 'problem', None) or 'no YAML'}") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError(f"--config {path}: expected a mapping of keys, got {type(data).__name__}")
    return data


def struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The Struct behind an annotation (`X`, `X | None`), if it is exactly one."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if typing.get_origin(kind) in (Union, types.UnionType):
        structs = [s for arg in typing.get_args(kind) if (s := struct_of(arg))]
        return structs[0] if len(structs) == 1 else None
    return None


def fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Key in the file -> annotation."""
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)}


def _path_text(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _check_keys(kind: Any, value: Any, path: tuple[str | int, ...]) -> None:
    """Refuse unknown keys, naming the allowed ones (msgspec names only the unknown one)."""
    if isinstance(value, list):
        args = typing.get_args(kind)
        for number, item in enumerate(value):
            _check_keys(args[0] if args else Any, item, (*path, number))
        return
    struct = _variant(kind, value) if isinstance(value, Mapping) else None
    if struct is None:
        return
    allowed = fields(struct)
    tag_field = struct.__struct_config__.tag_field
    for key, item in value.items():
        if key == tag_field and key not in allowed:
            continue
        if key not in allowed:
            raise ConfigError(f"{_path_text((*path, str(key)))}: unknown key; allowed: {', '.join(allowed)}")
        _check_keys(allowed[key], item, (*path, str(key)))


def _variant(kind: Any, value: Mapping[str, Any]) -> type[msgspec.Struct] | None:
    """The Struct that `value` will be decoded as; of a tagged union the one that its tag names."""
    struct = struct_of(kind)
    if struct is not None:
        return struct
    for arg in typing.get_args(kind):
        if isinstance(arg, type) and issubclass(arg, msgspec.Struct):
            config = arg.__struct_config__
            if config.tag_field and value.get(config.tag_field) == config.tag:
                return arg
    return None


def _allowed(struct: type[msgspec.Struct], path: str) -> str:
    """Values that the key at `path` (msgspec's `$.a.b[0]`) may have, for the end of an error line."""
    kind: Any = struct
    for part in path.removeprefix("$").strip(".").replace("[", ".[").split("."):
        if part.startswith("["):
            kind = next(iter(typing.get_args(kind)), Any)
        elif part:
            inner = struct_of(kind)
            kind = fields(inner).get(part, Any) if inner else Any
    if typing.get_origin(kind) is Literal:
        return "; allowed: " + ", ".join(str(value) for value in typing.get_args(kind))
    variants = [a for a in typing.get_args(kind) if isinstance(a, type) and issubclass(a, msgspec.Struct)]
    tags = [str(a.__struct_config__.tag) for a in variants if a.__struct_config__.tag]
    return "; allowed: " + ", ".join(tags) if tags else ""


def convert(struct: type[T], data: Mapping[str, Any]) -> T:
    """Decode `data` strictly; ConfigError names the path and what is allowed."""
    _check_keys(struct, data, ())
    try:
        return msgspec.convert(data, struct, strict=False)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `")
        path = path.rstrip("`")
        where = path.removeprefix("$").lstrip(".")
        raise ConfigError((f"{where}: " if where else "") + text + _allowed(struct, path)) from None
