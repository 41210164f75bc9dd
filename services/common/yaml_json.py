"""YAML from outside, as JSON: read where it can neither hold up the event loop nor take the process along.

A reader of YAML manages about 2 MB/s, and a few lines with aliases or merges can stand for gigabytes. What is longer than
a few milliseconds' work, or has aliases, is read by a process of its own, which is bounded in memory and time.
"""

from __future__ import annotations

import asyncio
import sys
from weakref import WeakKeyDictionary

import msgspec

from services.common import yaml_child
from services.common.errors import StatusError, bad_request, request_too_large, too_many_requests, unavailable

SMALL = 8 * 1024
"""Bytes that are read at once, unless they have aliases."""
AT_ONCE = 2
WAITING = 64
"""Documents that may wait for their turn; more are 429."""
LIMIT = 60.0
"""Seconds for one document; its process has less of the processor's time."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


class Turns:
    """Who reads, and who waits, on one event loop."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(AT_ONCE)
        self.waiting = 0


async def yaml_to_json(body: bytes) -> bytes:
    """`body` as JSON. StatusError: 400 for what is no YAML, 413 for what it would blow up to, 429 when many wait.

    What is JSON already, as most that is sent for YAML, stays as it is.
    """
    if body.lstrip()[:1] == b"{":
        try:
            msgspec.json.decode(body, type=msgspec.Raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # flow-style YAML may start with a brace as well: let the YAML reader judge
        else:
            return body
    if len(body) <= SMALL and b"*" not in body:
        try:
            return yaml_child.convert(body)
        except yaml_child.TooLarge as error:
            raise request_too_large(str(error)) from None
        except yaml_child.NoYaml as error:
            raise bad_request(f"error decoding YAML: {error}") from None
    turns = _turns.setdefault(asyncio.get_running_loop(), Turns())
    if turns.waiting >= WAITING:
        raise too_many_requests("many YAML bodies are being read: try again later, or send JSON")
    turns.waiting += 1
    try:
        async with turns.free:
            return await _apart(body)
    finally:
        turns.waiting -= 1


async def _apart(body: bytes) -> bytes:
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", yaml_child.__name__,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
    except OSError as error:
        raise unavailable(f"YAML cannot be read now ({error.strerror}): send JSON", retry_after=1) from error
    try:
        async with asyncio.timeout(LIMIT):
            answer, _ = await child.communicate(body)
    except TimeoutError:
        raise _too_much() from None
    finally:
        if child.returncode is None:
            child.kill()
            await asyncio.shield(child.wait())
    if child.returncode == yaml_child.OK:
        return answer
    text = answer.decode("utf-8", "replace")
    if child.returncode == yaml_child.NO_YAML:
        raise bad_request(f"error decoding YAML: {text}")
    raise request_too_large(text) if child.returncode == yaml_child.TOO_LARGE else _too_much()


def _too_much() -> StatusError:
    return request_too_large("the YAML takes too much to read: send JSON")
