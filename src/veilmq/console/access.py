"""What the page of accounts is told: the keys of an account, without their secrets, and what a caller may do."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from veilmq.wire.exchange import Caller


class ShownKey(msgspec.Struct, frozen=True, kw_only=True):
    """One access key: ``user`` is empty for the account itself, ``expires_at_s`` is since the epoch.

    A ``temporary`` key needs a session token with each request, and cannot sign in here.
    """

    id: str
    user: str
    expires_at_s: float | None
    expired: bool
    temporary: bool


Keys = Callable[[str], Sequence[ShownKey]]
"""Tells the keys of an account."""


class May(Protocol):
    """Tells what a caller may do."""

    def __call__(
        self, caller: Caller, queue: str, policy: str, *, peer: str | None, program: str | None
    ) -> Sequence[tuple[str, bool]]:
        """Return each action of SQS on ``queue``, whose policy this is, and whether ``caller`` may do it now.

        ``peer`` is the address that he comes from, ``program`` what he uses (conditions may ask for both).
        """
