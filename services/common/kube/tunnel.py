"""Raw connections to an apiserver, for requests that are upgraded (exec, attach, port-forward)."""

from __future__ import annotations

import asyncio
import base64
import socket
from urllib.parse import unquote, urlsplit

from services.common.kube.credentials import Credentials
from services.common.kube.transport import make_socket

TIMEOUT = 6.0
MAX_ANSWER = 16 * 1024
BUFFER = 256 * 1024


async def open_tunnel(credentials: Credentials) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the server of `credentials`; OSError, TimeoutError or EOFError where that fails."""
    server = urlsplit(credentials.server)
    host = server.hostname or ""
    port = server.port or (443 if server.scheme == "https" else 80)
    async with asyncio.timeout(TIMEOUT):
        if credentials.proxy:
            sock = await _through_proxy(credentials.proxy, host, port)
        else:
            sock = await _connect(host, port)
        name = (credentials.server_name or host) if credentials.tls else None
        try:
            return await asyncio.open_connection(
                sock=sock, ssl=credentials.tls, server_hostname=name, limit=BUFFER
            )
        except BaseException:
            sock.close()
            raise


async def _connect(host: str, port: int) -> socket.socket:
    """Connect to the first address that answers."""
    loop = asyncio.get_running_loop()
    last: OSError = OSError("no address")
    for info in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = make_socket(info)
        try:
            await loop.sock_connect(sock, info[4])
        except OSError as error:
            sock.close()
            last = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise last


async def _through_proxy(proxy: str, host: str, port: int) -> socket.socket:
    """Ask an HTTP proxy for a connection to host:port."""
    parts = urlsplit(proxy)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if parts.username:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(pair).decode()}")
    loop = asyncio.get_running_loop()
    sock = await _connect(parts.hostname or "", parts.port or 80)
    try:
        await loop.sock_sendall(sock, ("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = b""
        # Byte by byte past the first read would be safer still, but nothing follows before we speak TLS.
        while b"\r\n\r\n" not in answer:
            chunk = await loop.sock_recv(sock, 4096)
            if not chunk or len(answer) > MAX_ANSWER:
                raise EOFError("the proxy closed the connection")
            answer += chunk
        code = answer.split(b" ", 2)[1:2]
        if code != [b"200"]:
            raise OSError(f"the proxy answered {b''.join(code).decode('ascii', 'replace')[:8]} to CONNECT")
    except BaseException:
        sock.close()
        raise
    return sock
