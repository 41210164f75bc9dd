"""JSON patches (RFC 6902) that cannot pass: they are applied to the object as shown."""

from __future__ import annotations

import copy
from typing import Any

import jsonpatch
import msgspec

from services.common import errors
from services.common.errors import StatusError

TOUCHED = ("/metadata/annotations", "/metadata/ownerReferences", "/metadata/resourceVersion")
VERSION = "/metadata/resourceVersion"
MAX_OPERATIONS = 10_000  # kube-apiserver's own limit
MAX_COPIED = 3 * 1024 * 1024  # bytes that `copy` may add, kube-apiserver's own limit


class Operation(msgspec.Struct, rename={"from_": "from"}):
    """One operation, as far as it is looked at here."""

    op: str
    path: str
    from_: str = ""


def decode(body: bytes) -> list[dict[str, Any]]:
    """Decode and check a patch; 400 when it is none, 413 when it is too long."""
    try:
        operations = msgspec.json.decode(body, type=list[dict[str, Any]])
        msgspec.convert(operations, type=list[Operation])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.bad_request(f"error decoding patch: {error}") from error
    if len(operations) > MAX_OPERATIONS:
        raise errors.request_too_large(
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        )
    return operations


def needs_translation(operations: list[dict[str, Any]]) -> bool:
    """True when an operation reads or writes what differs between the shown and the member's object."""
    paths = [operation.get(field, "x") for operation in operations for field in ("path", "from")]
    return any(path in ("", "/metadata") or path.startswith(TOUCHED) for path in paths)


def named_version(operations: list[dict[str, Any]]) -> str:
    """The version that the patch insists on, "" when none."""
    for operation in operations:
        if operation["path"] == VERSION and operation["op"] in ("test", "replace", "add"):
            return str(operation.get("value", ""))
    return ""


def apply(operations: list[dict[str, Any]], obj: dict[str, Any]) -> dict[str, Any]:
    """Apply to a shown object; 422 for a failed test or a path that is not there, as Kubernetes."""
    changed: Any = copy.deepcopy(obj)
    copied = 0
    try:
        for operation in operations:
            if operation["op"] == "copy":
                # Each copy of the whole into itself doubles it: thirty of them would fill the memory.
                copied += len(msgspec.json.encode(jsonpatch.JsonPointer(operation["from"]).resolve(changed)))
                if copied > MAX_COPIED:
                    text = f"the accumulated size of copies in the patch is {copied}, exceeding the limit {MAX_COPIED}"
                    raise StatusError(422, "Invalid", text)
            changed = jsonpatch.JsonPatch([operation]).apply(changed, in_place=True)
    except jsonpatch.JsonPatchTestFailed as error:
        # Without the value that is there: who may patch need not be who may read.
        where = operation.get("path", "")
        text = f"the server rejected our request due to an error in our request: testing value {where} failed: test failed"
        raise StatusError(422, "Invalid", text) from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, KeyError, TypeError) as error:
        text = f"the server rejected our request due to an error in our request: {error}"
        # Without details, as Kubernetes answers: kubectl shows the message then.
        raise StatusError(422, "Invalid", text) from error
    if not isinstance(changed, dict) or not isinstance(changed.get("metadata"), dict):
        raise errors.bad_request("the patch leaves no object")
    return changed
