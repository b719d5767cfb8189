"""Authentication: verify the signatures of requests with the keys of the credentials file.

The file is TOML: a table for each account and one for each of its keys (example: ``docs/security.md``). It contains
secrets in the clear, because a signature can only be verified with the secret; so only its owner may be able to read
it, which is checked. Errors quote only field names and the ids of accounts and keys.

Each protocol has its own signature; all use the same keys. Requests of one caller to one address share a context.
``Security`` combines all settings about access.
"""

import logging
import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from secrets import token_bytes
from typing import Annotated

import msgspec

from veilmq.server.admission import Share
from veilmq.server.http_parser import Request
from veilmq.server.process import Tls, TlsError, open_file
from veilmq.server.settings import Addresses, ServerSettings
from veilmq.wire.exchange import AccessKey, Caller, RequestContext, caller_named
from veilmq.wire.smq.signatures import Verifier as SmqVerifier
from veilmq.wire.sqs.names import account_of
from veilmq.wire.sqs.signatures import Verifier as SigV4Verifier

log = logging.getLogger(__name__)

Verifier = SigV4Verifier | SmqVerifier
"""The keys by id, for one family of protocols."""

_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_AccountId = Annotated[str, msgspec.Meta(pattern="^[0-9]{12}$")]
_KeyId = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{3,128}$")]
_UserName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_+=,.@-]{1,64}$")]
_Secret = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]


class CredentialsError(Exception):
    """The credentials file cannot be used; ``str()`` says why and what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        """``problem`` is the predicate of the sentence that begins with the path."""
        super().__init__(f"The credentials file {path} {problem}.")


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _KeyId
    secret: _Secret
    user: _UserName | None = None
    session_token: _Secret | None = None
    expires: datetime | None = None

    def __repr__(self) -> str:
        return f"_Key({self.id!r})"


class _Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _AccountId
    name: str
    keys: list[_Key] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accounts: list[_Account]


def load(path: Path) -> dict[str, AccessKey]:
    """Return the keys of the file by id; raises ``CredentialsError``. Expiry times without an offset are in UTC."""
    try:
        file = msgspec.toml.decode(_read(path).decode("utf-8-sig"), type=_File)
    except msgspec.ValidationError as error:
        raise CredentialsError(path, f"is invalid: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        position = str(error).rpartition("(")[2].rstrip(")") if "(at " in str(error) else "it is not UTF-8"
        raise CredentialsError(path, f"is not TOML ({position})") from None
    keys: dict[str, AccessKey] = {}
    accounts: set[str] = set()
    for account in file.accounts:
        if account.id in accounts:
            raise CredentialsError(path, f"has the account {account.id} twice; put its keys into one table")
        accounts.add(account.id)
        for key in account.keys:
            if key.id in keys:
                raise CredentialsError(path, f"has the key {key.id} twice; remove one of them")
            ends = key.expires
            if ends is not None and ends.tzinfo is None:
                ends = ends.replace(tzinfo=UTC)
            keys[key.id] = AccessKey(
                id=key.id,
                secret=key.secret.encode(),
                caller=caller_named(account.id, key.user or ""),
                session_token=None if key.session_token is None else key.session_token.encode(),
                expires_at_s=None if ends is None else ends.timestamp(),
            )
    if not keys:
        raise CredentialsError(path, "has no keys, so no request could be signed; add one")
    return keys


def _read(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            status = os.fstat(file.fileno())
            mode = status.st_mode
            # Kubernetes and systemd mount a secret as root's, readable by the server's group.
            is_mounted = status.st_uid == 0 != os.geteuid()
            if mode & (_OTHERS & ~stat.S_IRGRP if is_mounted else _OTHERS):
                others = f"others (mode {stat.S_IMODE(mode):04o}); run chmod {640 if is_mounted else 600} on it"
                raise CredentialsError(path, f"can be read or changed by {others}")
            return file.read()
    except OSError as error:
        raise CredentialsError(path, f"cannot be read: {error.strerror}") from None


_NO_KEY = AccessKey(id="", secret=token_bytes(), caller=caller_named("0" * 12))
"""Compared if the key id is missing, to take as long as with one."""


class Authentication:
    """The current keys. ``wall_s`` is the raw wall clock in seconds, as clients sign raw times."""

    def __init__(self, path: Path, *, region: str, secure: bool, wall_s: Callable[[], float]) -> None:
        """Read the file; raises ``CredentialsError``. ``secure``: requests come over TLS."""
        self._path = path
        self._region = region
        self._secure = secure
        self._wall_s = wall_s
        self._contexts: dict[str, tuple[RequestContext, RequestContext]] = {}
        self._verifiers: dict[type[Verifier], Verifier] = {}
        self._keys: dict[str, AccessKey] = {}
        self.loads = 0
        """How often the file was read: after a reload, earlier verifications may be invalid."""
        self.on_reload: Callable[[], object] = bool
        self._read()

    def reload(self) -> None:
        """Read the file again; log an error and keep the current keys if it cannot be used."""
        try:
            self._read()
            self.on_reload()
        except CredentialsError as error:
            log.error("the credentials were not reloaded: %s", error)

    def context(
        self, request: Request, unsigned: RequestContext, kind: type[Verifier], caller: Caller | None = None
    ) -> RequestContext:
        """Return the context of the caller that signed ``request``; raises the protocol's error.

        ``unsigned`` is the context without a caller, ``kind`` the protocol's verifier. A known ``caller`` need not
        sign.
        """
        if caller is None:
            hold = request.hold
            digest = None if hold is None or hold.digest is None else hold.digest.hexdigest().encode()
            caller = self._verifiers[kind].verify(
                request.method, request.target, request.headers, request.body, self._wall_s(), digest
            )
            request.connection.authenticated = True
            if hold is not None:
                hold.verify()
        cached = self._contexts.get(caller.arn)
        if cached is not None and cached[0] is unsigned:
            return cached[1]
        region = unsigned.account.removeprefix(account_of(unsigned.account))
        signed = msgspec.structs.replace(unsigned, account=caller.account + region, caller=caller)
        self._contexts[caller.arn] = unsigned, signed
        return signed

    def admit(self, request: Request, kind: type[Verifier]) -> Share:
        """Return the share to which the body of ``request`` counts until it is verified; only its head has arrived.

        Raises the protocol's error if there is no signature, no such key, or a date outside the window.
        """
        verifier = self._verifiers[kind]
        key = verifier.inspect(request.method, request.target, request.headers, self._wall_s())
        authenticated = request.connection.authenticated
        return Share(
            key,
            (request.source_ip(), authenticated),
            trusted=authenticated or not verifier.signs_body,
            is_signed=verifier.signs_body,
            is_verified=not verifier.signs_body,
        )

    @property
    def keys(self) -> Collection[AccessKey]:
        """All keys, including expired ones."""
        return self._keys.values()

    def caller_of(self, key_id: str) -> Caller | None:
        """Return the holder of the key ``key_id``; ``None`` if the key is missing or expired."""
        key = self._keys.get(key_id)
        if key is None or (key.expires_at_s is not None and key.expires_at_s <= self._wall_s()):
            return None
        return key.caller

    def secret_digest(self, key_id: str) -> bytes:
        """Return a digest of the key's secret; of a random one if the key is missing."""
        return sha256(self._keys.get(key_id, _NO_KEY).secret).digest()

    def sign_in(self, key_id: str, secret: str) -> Caller | None:
        """Return the holder of the key if ``secret`` is correct; takes as long for a missing key.

        Temporary keys, which need a session token, cannot sign in.
        """
        key = self._keys.get(key_id, _NO_KEY)
        is_correct = compare_digest(self.secret_digest(key_id), sha256(secret.encode()).digest())
        return self.caller_of(key_id) if is_correct and key.session_token is None else None

    def _read(self) -> None:
        keys = self._keys = load(self._path)
        self._verifiers = {
            SigV4Verifier: SigV4Verifier(keys, region=self._region, secure=self._secure),
            SmqVerifier: SmqVerifier(keys),
        }
        self._contexts.clear()
        self.loads += 1
        accounts = {key.caller.account for key in keys.values()}
        log.info("signatures are verified: %d keys of %d accounts in %s", len(keys), len(accounts), self._path)


ERRORS = (CredentialsError, TlsError)
"""Raised by ``secure``: the server cannot start, and ``str()`` says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Authentication and TLS of a server; ``None`` if not used."""

    authentication: Authentication | None
    tls: Tls | None
    wall_s: Callable[[], float]
    proxies: Addresses

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"

    def reload(self) -> None:
        """Read the credentials and the certificate again; each logs the result."""
        if self.authentication is None and self.tls is None:
            log.info("nothing to reload: neither credentials nor a certificate is in use")
        for part in (self.authentication, self.tls):
            if part is not None:
                part.reload()


def secure(settings: ServerSettings, *, wall_s: Callable[[], float]) -> Security:
    """Return the security of a server with ``settings``; raises one of ``ERRORS``."""
    tls = authentication = None
    if settings.tls_certificate is not None and settings.tls_key is not None:
        tls = Tls(settings.tls_certificate, settings.tls_key)
    if settings.credentials is not None:
        region = "" if settings.regions == "by-request" else settings.region
        authentication = Authentication(settings.credentials, region=region, secure=tls is not None, wall_s=wall_s)
    return Security(authentication=authentication, tls=tls, wall_s=wall_s, proxies=Addresses(settings.console_proxy))
