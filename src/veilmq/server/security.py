"""What the settings say about access: credentials, TLS, and reading both again at SIGHUP.

The server speaks TLS from 1.2 on. Each handshake uses the certificate that is in force when it begins, by the hook that
is there for names; so a new one is taken as a whole or not at all, and open connections keep theirs.
"""

import asyncio
import logging
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilmq.core.ports import Engine, MaySend
from veilmq.server.authentication import Authentication, CredentialsError
from veilmq.server.origin import ConsoleReach
from veilmq.server.permissions import Judge, Permissions
from veilmq.server.setting_kinds import Addresses
from veilmq.server.settings import ServerSettings

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


class Reload:
    """All that is read again, in order; each says for itself in the log what came of it."""

    def __init__(self, readers: Sequence[Callable[[], None]]) -> None:
        """``readers`` raise nothing."""
        self._readers = readers

    def __call__(self) -> None:
        """Read again."""
        if not self._readers:
            log.info("there is nothing to read again: neither credentials nor a certificate are in use")
        for read in self._readers:
            read()

    @contextmanager
    def on_signal(self) -> Iterator[None]:
        """Do so at each SIGHUP; only the main thread can, in another one this does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)


ERRORS = (CredentialsError, TlsError)
"""What ``secure`` raises: the start has failed, and ``str()`` says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """``None`` is what is not in use: requests need no signature, nothing is encrypted."""

    authentication: Authentication | None
    tls: Tls | None
    region: str
    wall_s: Callable[[], float]
    proxies: Addresses

    @property
    def scheme(self) -> str:
        """Return how URLs of the server begin."""
        return "http" if self.tls is None else "https"

    @property
    def context(self) -> ssl.SSLContext | None:
        """Return what listeners that take it need for TLS."""
        return None if self.tls is None else self.tls.context

    @property
    def transport(self) -> dict[str, Any]:
        """Return the arguments of the event loop's ``create_server`` for TLS."""
        if self.tls is None:
            return {}
        return {
            "ssl": self.tls.context,
            "ssl_handshake_timeout": HANDSHAKE_S_MAX,
            "ssl_shutdown_timeout": CLOSING_S_MAX,
        }

    @property
    def reload(self) -> Reload:
        """Return what reads all files again."""
        return Reload([used.reload for used in (self.authentication, self.tls) if used is not None])

    @property
    def console_reach(self) -> ConsoleReach:
        """Return who may use the console, from where."""
        return ConsoleReach(signed=self.authentication is not None, tls=self.tls is not None, proxies=self.proxies)

    @property
    def judge(self) -> Judge:
        """Return what judges where there is no request."""
        return Judge(region=self.region, secure=self.tls is not None, wall_s=self.wall_s)

    @property
    def may_send(self) -> MaySend | None:
        """Return what decides whether move tasks go on; nothing does where there are no accounts."""
        return None if self.authentication is None else self.judge.may_send

    def permissions(self, engine: Engine) -> Permissions | None:
        """Return what judges requests for ``engine``; nothing does where there are no accounts."""
        if self.authentication is None:
            return None
        return Permissions(engine, region=self.region, secure=self.tls is not None, wall_s=self.wall_s)


def secure(settings: ServerSettings, *, wall_s: Callable[[], float]) -> Security:
    """Return the security of a server with ``settings``; raises one of ``ERRORS``."""
    tls = None
    if settings.tls_certificate is not None and settings.tls_key is not None:
        tls = Tls(settings.tls_certificate, settings.tls_key)
    authentication = None
    if settings.credentials is not None:
        authentication = Authentication(
            settings.credentials,
            region="" if settings.regions == "by-request" else settings.region,
            secure=tls is not None,
            wall_s=wall_s,
        )
    proxies = Addresses(settings.console_proxy)
    return Security(authentication=authentication, tls=tls, region=settings.region, wall_s=wall_s, proxies=proxies)
