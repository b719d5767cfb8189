"""Who asks: the signature of each request against the keys of the credentials file, which can be read again.

Each protocol has its own signature, and all have the same keys: an account's key is good for every one of them.
Requests of one caller share a context as long as they come under one address, as nearly all do.
"""

import logging
from collections.abc import Callable, Collection
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from secrets import token_hex

import msgspec

from veilmq.server import credentials
from veilmq.server.byte_budget import Share
from veilmq.server.credentials import CredentialsError
from veilmq.server.http_request import Request
from veilmq.server.verifiers import Keys, Make, Verifier
from veilmq.wire.exchange import AccessKey, Caller, RequestContext, caller_named
from veilmq.wire.sqs.names import account_of

log = logging.getLogger(__name__)

_NO_KEY = AccessKey(id="", secret=token_hex(), caller=caller_named("0" * 12))
"""What is compared with where there is no such key."""


class Authentication:
    """The keys in force. ``wall_s`` is the raw wall clock in seconds: signatures are compared with what others see."""

    __slots__ = ("_contexts", "_keys", "_path", "_region", "_secure", "_verifiers", "_wall_s", "loads")

    def __init__(self, path: Path, *, region: str, secure: bool, wall_s: Callable[[], float]) -> None:
        """Read the file; raises ``CredentialsError``. ``secure`` tells that requests come over TLS."""
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

        ``unsigned`` is what it is of anybody, ``make`` is the protocol's. A ``caller`` who is known needs not sign.
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
        keys = self._keys = credentials.load(self._path)
        self._verifiers.clear()
        self._contexts.clear()
        self.loads += 1
        accounts = {key.caller.account for key in keys.values()}
        log.info("signatures are verified: %d keys of %d accounts in %s", len(keys), len(accounts), self._path)
