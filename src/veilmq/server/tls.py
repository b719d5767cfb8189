"""TLS by the server itself, from TLS 1.2 on: a certificate and its key, which can be read again at any time.

Each handshake is given the certificate that is in force when it begins, by the hook that is there for names; so a new
one is taken as a whole or not at all, and open connections keep what they have.
"""

import logging
import ssl
from pathlib import Path

log = logging.getLogger(__name__)

HANDSHAKE_S_MAX = 10
CLOSING_S_MAX = 2
"""How long a client may take for its part of a handshake, and of the end of a connection, in seconds."""


class TlsError(Exception):
    """Certificate and key cannot be used; ``str()`` says why and what to do."""


class Tls:
    """What both ports speak; ``context`` is for their listeners."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read both files; raises ``TlsError``."""
        self._certificate = certificate
        self._key = key
        self._current = _read(certificate, key)
        self.context = _read(certificate, key)
        self.context.sni_callback = self._give_current

    def reload(self) -> None:
        """Read both files again; what cannot be used leaves them as they were, and the log says why."""
        try:
            self._current = _read(self._certificate, self._key)
        except TlsError as error:
            log.error("the certificate stays as it was: %s", error)
        else:
            log.info("new connections get the certificate that is in %s now", self._certificate)

    def _give_current(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current


def _read(certificate: Path, key: Path) -> ssl.SSLContext:
    for path, what in ((certificate, "certificate"), (key, "key")):
        try:
            path.read_bytes()
        except OSError as error:
            raise TlsError(f"The TLS {what} {path} cannot be read: {error.strerror}.") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except _Passphrase:
        raise TlsError(f"The TLS key {key} needs a passphrase; give one without.") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"The TLS key {key} is not that of the certificate {certificate}.") from None
        raise TlsError(f"The TLS certificate {certificate} or the key {key} is not in PEM: {_reason(error)}.") from None
    return context


class _Passphrase(Exception):
    pass


def _no_passphrase() -> str:
    raise _Passphrase


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "unknown").lower().replace("_", " ")
