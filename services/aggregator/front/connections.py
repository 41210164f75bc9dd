"""Accepts connections, and bounds how many there are: of those that nobody has vouched for yet, and of all others.

A connection counts from the moment at which the kernel hands it over, so its TLS handshake is in the account, until a
request on it was authenticated; then it counts among those, until it ends.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
import time
from collections.abc import Callable

from prometheus_client import Counter, Gauge

from services.aggregator.config import Limits
from services.common.tasks import Tasks

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT = 10.0
BACKLOG = 1024
YOUNG = 5.0
"""Seconds for which an unauthenticated connection is not ended in favour of a newer one: many clients may connect anew at once."""
FULL_PAUSE = 0.5
"""Seconds without accepting when the process may open no more files."""
SPARE_FILES = 1024
"""Files that are open besides clients' connections: members, etcd, services."""

CLOSED = Counter(
    "reclock_aggregator_clients_closed_total",
    "Connections ended for what their client did not do (send its request, its body, or read its answer), sent too much of "
    "(headers), or for room (unauthenticated, idle, refused)",
    ["reason"],
)
OPEN = Gauge("reclock_aggregator_connections", "Connections of clients", ["state"])


class Slot:
    """One connection's place. `end` closes it, whatever it is doing."""

    __slots__ = ("_book", "authenticated", "end", "since")

    def __init__(self, book: Book) -> None:
        self._book = book
        self.since = time.monotonic()
        self.authenticated = False
        self.end: Callable[[], object] = lambda: None

    def vouch(self) -> bool:
        """Somebody was authenticated on it; False where there is no room for one more such connection."""
        return self.authenticated or self._book.promote(self)

    def rests(self) -> None:
        """No request is under way: it may be ended for others."""
        self._book.rest(self)

    def works(self) -> None:
        """A request has come."""
        self._book.idle.pop(self, None)

    def release(self) -> None:
        """It has ended; idempotent."""
        self._book.release(self)


class Book:
    """Who has a connection. All of it is O(1)."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._strangers: dict[Slot, None] = {}  # oldest first
        self._known: set[Slot] = set()
        self.idle: dict[Slot, None] = {}  # idle for longest first

    def enter(self) -> Slot | None:
        """A place for a connection that has come; None where there is none for it."""
        if len(self._strangers) >= self._limits.unauthenticated:
            oldest = next(iter(self._strangers))
            if time.monotonic() - oldest.since < YOUNG:
                CLOSED.labels("refused").inc()
                return None
            CLOSED.labels("unauthenticated").inc()
            self.release(oldest)
            oldest.end()
        slot = Slot(self)
        self._strangers[slot] = None
        self._show()
        return slot

    def promote(self, slot: Slot) -> bool:
        """Count a connection among the authenticated, in the place of one that does nothing if need be."""
        if slot not in self._strangers:
            return True  # it has ended meanwhile
        if len(self._known) >= self._limits.connections:
            if not self.idle:
                return False
            longest = next(iter(self.idle))
            CLOSED.labels("idle").inc()
            self.release(longest)
            longest.end()
        del self._strangers[slot]
        self._known.add(slot)
        slot.authenticated = True
        self._show()
        return True

    def rest(self, slot: Slot) -> None:
        """Nothing goes on on a connection; what is said of one that has ended does not count."""
        if slot in self._known:
            self.idle[slot] = None

    def release(self, slot: Slot) -> None:
        """Forget a connection."""
        self._strangers.pop(slot, None)
        self._known.discard(slot)
        self.idle.pop(slot, None)
        self._show()

    def _show(self) -> None:
        OPEN.labels("unauthenticated").set(len(self._strangers))
        OPEN.labels("authenticated").set(len(self._known))


class Listener:
    """Listening sockets of one address, and their connections' handshakes. `make` gives a connection its protocol."""

    def __init__(self, limits: Limits, make: Callable[[Slot], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
        self._book = Book(limits)
        self._make = make
        self._tls = tls
        self._sockets: list[socket.socket] = []
        self._tasks = Tasks("front/listener")
        raise_file_limit(limits.connections + limits.unauthenticated + SPARE_FILES)

    async def start(self, host: str, port: int, *, shared: bool) -> int:
        """Listen; returns the port. OSError where the address cannot be had."""
        found = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(found):
            self._sockets.append(_listen(family, address, shared))
        for listening in self._sockets:
            self._tasks.spawn(self._accept(listening), "accept")
        return int(self._sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Accept nothing more; handshakes under way are broken off, connections go on."""
        await self._tasks.close()
        for listening in self._sockets:
            listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno != errno.ECONNABORTED:
                    CLOSED.labels("files").inc()
                    log.error("no connection can be accepted: %s", error.strerror)
                    await asyncio.sleep(FULL_PAUSE)
                continue
            slot = self._book.enter()
            if slot is None:
                accepted.close()
                continue
            task = self._tasks.spawn(self._connect(accepted, slot), "handshake")
            slot.end = task.cancel

    async def _connect(self, accepted: socket.socket, slot: Slot) -> None:
        connected = False
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(slot), accepted, ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT if self._tls else None,
            )  # fmt: skip
            connected = True
        except OSError as error:
            log.debug("a handshake failed: %s", error)
        finally:
            if not connected:
                slot.release()
                accepted.close()


def _listen(family: int, address: tuple[object, ...], shared: bool) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, f"cannot listen on {address[0]} port {address[1]}: {error.strerror}") from None
    return made


def raise_file_limit(wanted: int) -> None:
    """Let the process open so many files, as far as it may raise its limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("limits: this process may open %d files, fewer than the connections it is to take need (%d)", allowed, wanted)
