"""The front's TLS: serving certificate, and client certificates where they are given."""

from __future__ import annotations

import logging
import os
import ssl

from services.aggregator.front.certificates import Authorities

log = logging.getLogger(__name__)


class ServerTls:
    """Holds the context; `reload` takes renewed files for new connections."""

    def __init__(self, cert: str, key: str, authorities: Authorities) -> None:
        self._cert, self._key, self._authorities = cert, key, authorities
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self.context.load_cert_chain(cert, key)
        self._seen = self._stamps()
        if authorities.files():
            # Optional: who comes without one may still hold a token.
            self.context.verify_mode = ssl.CERT_OPTIONAL
            # A session that goes on where another ended brings no chain to be judged by; client-go never asks for one.
            self.context.num_tickets = 0
            self.context.options |= ssl.OP_NO_TICKET
            for path in authorities.files():
                self.context.load_verify_locations(path)

    def _stamps(self) -> tuple[int, ...]:
        return tuple(os.stat(path).st_mtime_ns for path in (self._cert, self._key, *self._authorities.files()))

    def reload(self) -> bool:
        """Take the files anew if they have changed; what cannot be read keeps the old ones, and is logged."""
        try:
            stamps = self._stamps()
            if stamps == self._seen:
                return False
            # A certificate whose key is not there yet would leave the context without any: files are tried elsewhere first.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert, self._key)
            self.context.load_cert_chain(self._cert, self._key)
            self._authorities.reload()
            for path in self._authorities.files():
                self.context.load_verify_locations(path)  # only ever adds: Authorities know what was taken out
        except (OSError, ValueError) as error:
            log.error("renewed certificates cannot be used: %s", error)
            return False
        self._seen = stamps
        log.info("certificates were renewed")
        return True
