"""The front's TLS: serving certificate, and client certificates where they are given."""

from __future__ import annotations

import logging
import os
import ssl

from services.aggregator.front.certificates import Authorities

log = logging.getLogger(__name__)


class Telling(ssl.SSLObject):
    """Lets a client read why its certificate is refused: the event loop would break the connection off before the alert is
    sent, and all that kubectl could say of an old or expired kubeconfig is "EOF".

    A handshake that was refused asks for more: so the alert goes out, and the client hangs up. One that does not is
    ended by the limit of handshakes; what it sends meanwhile is thrown away.
    """

    incoming: ssl.MemoryBIO
    _refused: bool = False

    def do_handshake(self) -> None:
        if not self._refused:
            try:
                super().do_handshake()
            except ssl.SSLCertVerificationError as error:
                log.info("a client's certificate is refused: %s", error.verify_message)
                self._refused = True
            else:
                return
        self.incoming.read()
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert is on its way")


class TellingContext(ssl.SSLContext):
    """Makes such handshakes."""

    sslobject_class = Telling

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool = False,
        server_hostname: str | bytes | None = None, session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:  # fmt: skip
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, Telling)
        made.incoming = incoming
        return made


class ServerTls:
    """Holds the context; `reload` takes renewed files for new connections."""

    def __init__(self, cert: str, key: str, authorities: Authorities) -> None:
        self._cert, self._key, self._authorities = cert, key, authorities
        self.context = TellingContext(ssl.PROTOCOL_TLS_SERVER)
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
