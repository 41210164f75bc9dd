"""Opens watches from a process of its own, whose sockets are not the front's: `PORT COUNT HEAD`.

Prints one JSON object: status codes and how often each came, and how many answers of 429 bore a Retry-After. Holds them all
until its standard input ends.
"""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter

AT_ONCE = 500
"""Connections on which nobody is known yet have a limit of their own."""


def main(port: int, count: int, head: str) -> None:
    opened: list[socket.socket] = []
    codes, told = Counter[str](), 0
    for begin in range(0, count, AT_ONCE):
        some = [socket.create_connection(("127.0.0.1", port), timeout=120) for _ in range(min(AT_ONCE, count - begin))]
        opened += some
        for one in some:
            one.sendall(head.encode())
        for one in some:
            answer = b""
            while b"\r\n\r\n" not in answer:
                more = one.recv(4096)
                assert more, answer
                answer += more
            code = answer.split()[1].decode()
            codes[code] += 1
            told += code == "429" and b"retry-after: 1\r\n" in answer.lower()
    print(json.dumps({"codes": codes, "told": told}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
