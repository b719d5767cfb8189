"""What a server's settings say about who may ask and how: credentials, TLS, and reading both again."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from veilmq.core.ports import Engine, MaySend
from veilmq.server.addresses import Addresses
from veilmq.server.authentication import Authentication
from veilmq.server.console_reach import ConsoleReach
from veilmq.server.credentials import CredentialsError
from veilmq.server.judge import Judge
from veilmq.server.permissions import Permissions
from veilmq.server.reload import Reload
from veilmq.server.settings import ServerSettings
from veilmq.server.tls import CLOSING_S_MAX, HANDSHAKE_S_MAX, Tls, TlsError

ERRORS = (CredentialsError, TlsError)
"""What ``secure`` raises: the start has failed, and ``str()`` says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """``None`` is what is not in use: nobody is asked who he is, nothing is encrypted."""

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
        """Return what the event loop's ``create_server`` is told about TLS."""
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
        """Return what judges requests for ``engine``; nothing does where nobody is asked who he is."""
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
    proxies = Addresses.none() if settings.console_proxy is None else Addresses(settings.console_proxy)
    return Security(authentication=authentication, tls=tls, region=settings.region, wall_s=wall_s, proxies=proxies)
