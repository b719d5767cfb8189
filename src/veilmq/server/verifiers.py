"""How each family of protocols finds out who signed a request: made anew of the keys whenever they are read."""

from collections.abc import Callable, Mapping
from typing import Protocol

from veilmq.wire.exchange import AccessKey, Caller
from veilmq.wire.smq.signatures import Verifier as SmqVerifier
from veilmq.wire.sqs.signatures import Verifier as SigV4Verifier


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
        """Return who signed, as far as the head of a request tells it, before its body is read; raises as ``verify``.

        Where signatures do not cover the body (not ``signs_body``), it is as certain as after ``verify``.
        """


Keys = Mapping[str, AccessKey]
Make = Callable[[Keys, str, bool], Verifier]
"""Makes one of the keys (by id), for a region; tells it whether requests come over TLS."""


def sigv4(keys: Keys, region: str, secure: bool) -> Verifier:
    """Return what verifies AWS Signature Version 4."""
    return SigV4Verifier(keys, region=region, secure=secure)


def smq(keys: Keys, region: str, secure: bool) -> Verifier:
    """Return what verifies the signatures of SMQ, which know neither a region of ours nor TLS."""
    return SmqVerifier(keys)
