"""Who sent a request: its signature, verified with the keys of the credentials file, which can be read again.

The file is TOML: a table for each account and one for each of its keys (``docs/security.md`` has an example). It holds
secrets in the clear, because a signature can only be verified with the secret; so only its owner may be able to read
it, which is checked. Errors repeat nothing of its content but names of members and ids of accounts and keys.

Each protocol has its own signature, and all use the same keys. Requests of one caller share a context as long as they
come under one address, as nearly all do. ``Security`` is what the settings say about access as a whole.
"""

import logging
import os
import ssl
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Protocol

import msgspec

from veilmq.server.admission import Share
from veilmq.server.http_parser import Request
from veilmq.server.origin import ConsoleReach
from veilmq.server.process import CLOSING_S_MAX, HANDSHAKE_S_MAX, Reload, Tls, TlsError
from veilmq.server.setting_kinds import Addresses
from veilmq.server.settings import ServerSettings
from veilmq.wire.exchange import AccessKey, Caller, RequestContext, caller_named
from veilmq.wire.smq.signatures import Verifier as SmqVerifier
from veilmq.wire.sqs.names import account_of
from veilmq.wire.sqs.signatures import Verifier as SigV4Verifier

_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_AccountId = Annotated[str, msgspec.Meta(pattern="^[0-9]{12}$")]
_KeyId = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{3,128}$")]
_UserName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_+=,.@-]{1,64}$")]
_Secret = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]


class CredentialsError(Exception):
    """The credentials file cannot be used; ``str()`` says why and what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        """``problem`` follows the path in a sentence."""
        super().__init__(f"The credentials file {path} {problem}.")


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _KeyId
    secret: _Secret
    user: _UserName | None = None
    session_token: _Secret | None = None
    expires: datetime | None = None

    def __repr__(self) -> str:
        """Tell no secret."""
        return f"_Key({self.id!r})"


class _Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: _AccountId
    name: str
    keys: list[_Key] = []


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    accounts: list[_Account]


def load(path: Path) -> dict[str, AccessKey]:
    """Return the keys of the file by id; raises ``CredentialsError``."""
    try:
        found = msgspec.toml.decode(_read(path), type=_File)
    except msgspec.ValidationError as error:
        raise CredentialsError(path, f"is not as it must be: {error}") from None
    except (msgspec.DecodeError, ValueError) as error:
        place = str(error).rpartition("(")[2].rstrip(")") if "(at " in str(error) else "its bytes are no UTF-8"
        raise CredentialsError(path, f"is no TOML ({place})") from None
    keys: dict[str, AccessKey] = {}
    for key in _keys(path, found):
        if key.id in keys:
            raise CredentialsError(path, f"has the key {key.id} twice; remove one of them")
        keys[key.id] = key
    if not keys:
        raise CredentialsError(path, "has no keys, so nobody could ask for anything; add one")
    return keys


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise CredentialsError(path, "is no file")
            if mode & _OTHERS:
                allowed = f"{stat.S_IMODE(mode):04o}"
                raise CredentialsError(path, f"can be read or changed by others (mode {allowed}); run chmod 600 on it")
            return file.read()
    except OSError as error:
        raise CredentialsError(path, f"cannot be read: {error.strerror}") from None


def _keys(path: Path, found: _File) -> Iterator[AccessKey]:
    seen: set[str] = set()
    for account in found.accounts:
        if account.id in seen:
            raise CredentialsError(path, f"has the account {account.id} twice; put its keys into one table")
        seen.add(account.id)
        for key in account.keys:
            yield AccessKey(
                id=key.id,
                secret=key.secret,
                caller=caller_named(account.id, key.user or ""),
                session_token=key.session_token,
                expires_at_s=_seconds(key.expires),
            )


def _seconds(instant: datetime | None) -> float | None:
    """Return ``instant`` in seconds since the epoch; one without an offset is in UTC."""
    if instant is None:
        return None
    return (instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)).timestamp()


class Verifier(Protocol):
    """The keys of one credentials file, as one family of protocols uses them."""

    signs_body: bool

    def verify(
        self,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
        now_s: float,
        digest: bytes | None = None,
    ) -> Caller:
        """Return who signed the request; raises what the protocol refuses a request with.

        ``headers`` are by lower-case name, ``now_s`` is the wall clock's, in seconds. ``digest`` is the SHA-256 of the
        body in hexadecimal, where it is known already.
        """

    def inspect(self, method: bytes, target: bytes, headers: Mapping[bytes, bytes], now_s: float) -> str:
        """Return the key by which a request is signed, from its head, before its body is read; raises as ``verify``.

        Where signatures do not cover the body (not ``signs_body``), it is as certain as after ``verify``.
        """


Keys = Mapping[str, AccessKey]
Make = Callable[[Keys, str, bool], Verifier]
"""Makes one of the keys (by id), for a region; ``True`` if requests come over TLS."""


def sigv4(keys: Keys, region: str, secure: bool) -> Verifier:
    """Return what verifies AWS Signature Version 4."""
    return SigV4Verifier(keys, region=region, secure=secure)


def smq(keys: Keys, region: str, secure: bool) -> Verifier:
    """Return what verifies the signatures of SMQ, which know neither a region of ours nor TLS."""
    return SmqVerifier(keys)


log = logging.getLogger(__name__)

_NO_KEY = AccessKey(id="", secret=token_hex(), caller=caller_named("0" * 12))
"""What is compared with where there is no such key."""


class Authentication:
    """The keys in force. ``wall_s`` is the raw wall clock in seconds: signatures are compared with what others see."""

    def __init__(self, path: Path, *, region: str, secure: bool, wall_s: Callable[[], float]) -> None:
        """Read the file; raises ``CredentialsError``. ``secure``: requests come over TLS."""
        self._path = path
        self._region = region
        self._secure = secure
        self._wall_s = wall_s
        self._contexts: dict[str, tuple[RequestContext, RequestContext]] = {}
        self._verifiers: dict[Make, Verifier] = {}
        self._keys: Keys = {}
        self.loads = 0
        """How often the file was read: what was verified before the last time may not be valid any more."""
        self._read()

    def reload(self) -> None:
        """Read the file again; one that cannot be used leaves the keys as they are, and says why in the log."""
        try:
            self._read()
        except CredentialsError as error:
            log.error("the credentials stay as they were: %s", error)

    def context(
        self, request: Request, unsigned: RequestContext, make: Make, caller: Caller | None = None
    ) -> RequestContext:
        """Return the context of who signed ``request``; raises what its protocol refuses a request with.

        ``unsigned`` is that of an unsigned request, ``make`` is the protocol's. A known ``caller`` need not sign.
        """
        if caller is None:
            verifier = self._verifiers.get(make) or self._made(make)
            hold = request.hold
            digest = None if hold is None else hold.hex_digest()
            caller = verifier.verify(
                request.method, request.target, request.headers, request.body, self._wall_s(), digest
            )
            request.line.proven = True
            if hold is not None:
                hold.verify()
        known = self._contexts.get(caller.arn)
        if known is not None and known[0] is unsigned:
            return known[1]
        region = unsigned.account.removeprefix(account_of(unsigned.account))
        made = msgspec.structs.replace(unsigned, account=caller.account + region, caller=caller)
        self._contexts[caller.arn] = unsigned, made
        return made

    def inspect(self, request: Request, make: Make) -> Share:
        """Return where the body of ``request``, of which only the head is there, counts until it is verified.

        Raises what its protocol refuses a request with: no signature, no such key, a date outside the window.
        """
        verifier = self._verifiers.get(make) or self._made(make)
        key = verifier.inspect(request.method, request.target, request.headers, self._wall_s())
        proven = request.line.proven
        return Share(
            key,
            (request.source_ip(), proven),
            trusted=proven or not verifier.signs_body,
            is_signed=verifier.signs_body,
            is_verified=not verifier.signs_body,
        )

    @property
    def keys(self) -> Collection[AccessKey]:
        """Return all keys, those that have ended, too."""
        return self._keys.values()

    def known(self, key_id: str) -> Caller | None:
        """Return who holds the key ``key_id``, ``None`` for one that is not there, or not any more."""
        key = self._keys.get(key_id)
        if key is None or (key.expires_at_s is not None and key.expires_at_s <= self._wall_s()):
            return None
        return key.caller

    def secret_of(self, key_id: str) -> bytes:
        """Return a digest of the secret of the key ``key_id``, of none for one that is not there."""
        return sha256(self._keys.get(key_id, _NO_KEY).secret).digest()

    def signed_in(self, key_id: str, secret: str) -> Caller | None:
        """Return who holds the key ``key_id`` if ``secret`` is its own; takes as long for a key that is not there.

        Temporary keys, which need a session token, are not for people.
        """
        key = self._keys.get(key_id, _NO_KEY)
        is_right = compare_digest(self.secret_of(key_id), sha256(secret.encode()).digest())
        return self.known(key_id) if is_right and key.session_token is None else None

    def _made(self, make: Make) -> Verifier:
        made = self._verifiers[make] = make(self._keys, self._region, self._secure)
        return made

    def _read(self) -> None:
        keys = self._keys = load(self._path)
        self._verifiers.clear()
        self._contexts.clear()
        self.loads += 1
        accounts = {key.caller.account for key in keys.values()}
        log.info("signatures are verified: %d keys of %d accounts in %s", len(keys), len(accounts), self._path)


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
