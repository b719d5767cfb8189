"""Signing in, slowed down after failures: for an address, and for a key, whoever guesses at it.

Each failure takes a token from two buckets, that of the address and that of the key's id; they fill up again with time.
The key's is larger, so that one address cannot keep others from signing in with a key: its own is empty long before. Of
IPv6 an address is the network of 64 bits, all of which one machine may have.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from veilmq.core.limits import SECOND_MS
from veilmq.wire.exchange import Caller

log = logging.getLogger("veilmq.console")

ADDRESS_FAILURES, ADDRESS_REST_MS = 20, 10 * SECOND_MS
KEY_FAILURES, KEY_REST_MS = 100, SECOND_MS

_REMEMBERED_MAX = 10_000
_KEY_CHARACTERS_MAX = 128
_MACHINE_BITS = 64


class SignInsPaused(Exception):
    """There were too many failures; one may try again in ``retry_after_s`` seconds."""

    def __init__(self, retry_after_s: int) -> None:
        """``retry_after_s`` is at least one."""
        super().__init__(f"There were too many wrong keys from here, or for this key. Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class SignIns:
    """The one way to sign in by id and secret. ``now_ms`` is the store's clock."""

    def __init__(self, sign_in: Callable[[str, str], Caller | None], *, now_ms: Callable[[], int]) -> None:
        """``sign_in`` answers who holds a key with this id and secret, ``None`` for nobody."""
        self._sign_in = sign_in
        self._now_ms = now_ms
        self._addresses = _Buckets(size=ADDRESS_FAILURES, rest_ms=ADDRESS_REST_MS)
        self._keys = _Buckets(size=KEY_FAILURES, rest_ms=KEY_REST_MS)

    def __call__(self, key_id: str, secret: str, peer: str | None) -> Caller | None:
        """Return who holds the key, ``None`` for a wrong one; raises ``SignInsPaused``, then for right ones, too."""
        now_ms, address, key = self._now_ms(), _network(peer), key_id[:_KEY_CHARACTERS_MAX]
        wait_ms = max(self._addresses.wait_ms(address, now_ms), self._keys.wait_ms(key, now_ms))
        if wait_ms > 0:
            raise SignInsPaused(-(-wait_ms // SECOND_MS))
        caller = self._sign_in(key_id, secret)
        if caller is None:
            log.warning("signing in with key %r from %s failed", key, peer)
            self._addresses.take(address, now_ms)
            self._keys.take(key, now_ms)
        return caller


class _Buckets:
    """Buckets of ``size`` tokens by name, into each of which one falls every ``rest_ms``.

    Of each it is kept when it will be full, and of those that are full nothing.
    """

    def __init__(self, *, size: int, rest_ms: int) -> None:
        self._slack_ms = (size - 1) * rest_ms
        self._rest_ms = rest_ms
        self._full_at_ms: OrderedDict[str, int] = OrderedDict()

    def wait_ms(self, name: str, now_ms: int) -> int:
        """Return how long it takes until there is a token; none or less where there is one."""
        return self._full_at_ms.get(name, now_ms) - now_ms - self._slack_ms

    def take(self, name: str, now_ms: int) -> None:
        """Take a token."""
        self._full_at_ms[name] = max(self._full_at_ms.pop(name, now_ms), now_ms) + self._rest_ms
        while len(self._full_at_ms) > _REMEMBERED_MAX:
            self._full_at_ms.popitem(last=False)


def _network(peer: str | None) -> str:
    """Return the address of IPv4, or the network that an address of IPv6 is in."""
    try:
        address = ip_address(peer or "")
    except ValueError:
        return peer or ""
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Address(int(address) >> _MACHINE_BITS << _MACHINE_BITS))
