"""Sign-in with rate limits on failures, by address and by key.

Each failure takes a token from the bucket of the address and from that of the key id; tokens return over time. The
key's bucket is larger, so that one address cannot lock a key for others: its own bucket is empty long before. An IPv6
address counts as its /64 network, all of which one machine may use.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

from veilmq.core.limits import SECOND_MS
from veilmq.wire.exchange import Caller

log = logging.getLogger("veilmq.console")

ADDRESS_FAILURES, ADDRESS_REFILL_MS = 20, 10 * SECOND_MS
KEY_FAILURES, KEY_REFILL_MS = 100, SECOND_MS

_BUCKETS_MAX = 10_000
_KEY_CHARACTERS_MAX = 128
_MACHINE_BITS = 64


class SignInsPaused(Exception):
    """Too many failures; retry after ``retry_after_s`` seconds."""

    def __init__(self, retry_after_s: int) -> None:
        """``retry_after_s`` is at least one."""
        super().__init__(f"Too many failed sign-ins from this address or for this key. Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class SignIns:
    """Sign-in by key id and secret. ``now_ms`` is the store's clock."""

    def __init__(self, sign_in: Callable[[str, str], Caller | None], *, now_ms: Callable[[], int]) -> None:
        """``sign_in`` returns the holder of the key if the secret is correct."""
        self._sign_in = sign_in
        self._now_ms = now_ms
        self._addresses = _Buckets(size=ADDRESS_FAILURES, refill_ms=ADDRESS_REFILL_MS)
        self._keys = _Buckets(size=KEY_FAILURES, refill_ms=KEY_REFILL_MS)

    def __call__(self, key_id: str, secret: str, peer: str | None) -> Caller | None:
        """Return the key's holder, ``None`` if the key is wrong; raises ``SignInsPaused``, also for correct keys."""
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
    """Token buckets by name: ``size`` tokens each, one of which returns every ``refill_ms``.

    Stores when each bucket is full again; full buckets need no entry.
    """

    def __init__(self, *, size: int, refill_ms: int) -> None:
        self._slack_ms = (size - 1) * refill_ms
        self._refill_ms = refill_ms
        self._full_at_ms: OrderedDict[str, int] = OrderedDict()

    def wait_ms(self, name: str, now_ms: int) -> int:
        """Return the time until there is a token; 0 or less if there is one."""
        return self._full_at_ms.get(name, now_ms) - now_ms - self._slack_ms

    def take(self, name: str, now_ms: int) -> None:
        self._full_at_ms[name] = max(self._full_at_ms.pop(name, now_ms), now_ms) + self._refill_ms
        while len(self._full_at_ms) > _BUCKETS_MAX:
            self._full_at_ms.popitem(last=False)


def _network(peer: str | None) -> str:
    """Return the IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ip_address(peer or "")
    except ValueError:
        return peer or ""
    if not isinstance(address, IPv6Address):
        return str(address)
    return str(address.ipv4_mapped or IPv6Address(int(address) >> _MACHINE_BITS << _MACHINE_BITS))
