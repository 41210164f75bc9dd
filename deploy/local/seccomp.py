"""Keeps a child process from taking inotify instances.

The kernel gives a user 128 of them. Kubernetes takes one for each certificate file, some 14 a cluster, and does
without (it looks at the files every minute, and the fleet's never change); KWOK needs one for each log that is
followed, and fails without. A filter refuses them to the former as a kernel that has run out does.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
from collections.abc import Callable

# The kernel's names of an architecture and of inotify_init and inotify_init1 there (audit.h, unistd.h).
_NUMBERS = {"x86_64": (0xC000003E, (253, 294)), "aarch64": (0xC00000B7, (26,))}
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EMFILE
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE = 0, 4


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_ushort),
        ("if_true", ctypes.c_ubyte),
        ("if_false", ctypes.c_ubyte),
        ("operand", ctypes.c_uint),
    )


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter for a machine's architecture, as (code, jump if true, jump if false, operand); [] when unknown."""
    if machine not in _NUMBERS:
        return []
    architecture, numbers = _NUMBERS[machine]
    count = len(numbers)
    return [
        (_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        (_JUMP_IF_EQUAL, 0, count + 1, architecture),
        (_LOAD, 0, 0, _OFFSET_NUMBER),
        *((_JUMP_IF_EQUAL, count - index, 0, number) for index, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]


def refuse_inotify() -> Callable[[], None]:
    """What a child calls between fork and exec; does nothing where the kernel has no such filters."""
    instructions = program(platform.machine()) if sys.platform == "linux" else []
    if not instructions:
        return lambda: None
    libc = ctypes.CDLL(None)
    array = (_Instruction * len(instructions))(*(_Instruction(*parts) for parts in instructions))
    whole = _Program(len(instructions), array)

    def apply() -> None:
        # Without privileges a filter is allowed only to those who cannot gain any. A refusal costs only instances.
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(whole), 0, 0)

    return apply
