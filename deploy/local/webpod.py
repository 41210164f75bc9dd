"""What answers in a pod of the local fleet when a port is forwarded to it: one HTTP response, over standard input
and output (`python webpod.py CLUSTER`). KWOK starts it once a connection.
"""

from __future__ import annotations

import sys


def main() -> int:
    request = sys.stdin.buffer.readline().decode(errors="replace").strip()
    for line in iter(sys.stdin.buffer.readline, b""):  # the headers; a body is of no interest
        if line in (b"\r\n", b"\n"):
            break
    body = f"hello from a pod of cluster {sys.argv[1]}: {request}\n".encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    sys.stdout.buffer.write(head.encode() + body)
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
