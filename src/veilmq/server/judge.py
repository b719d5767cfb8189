"""What policies decide beside requests on queues: what a visitor may do, and whether a move task goes on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from veilmq.wire.exchange import Caller, RequestContext, caller_of
from veilmq.wire.sqs.names import account_of, queue_arn, region_of
from veilmq.wire.sqs.policies import (
    GRANTABLE,
    NOBODY,
    OWNERS,
    Policy,
    PolicyError,
    PolicyRequest,
    actions_of,
    permits,
    read_policy,
)

_OF_A_QUEUE = (*GRANTABLE, *(action for action in OWNERS if action not in {"CreateQueue", "ListQueues"}))
_SEND = "SendMessage"


class _Source(NamedTuple):
    """Where a visitor comes from, as conditions of policies ask for it; a task comes from nowhere."""

    peer: str | None = None
    program: str | None = None

    def source_ip(self) -> str | None:
        """Return the address."""
        return self.peer

    def user_agent(self) -> str | None:
        """Return the name of the browser."""
        return self.program


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The policies of queues, by the same rules as for requests. ``wall_s`` is the raw wall clock."""

    region: str
    secure: bool
    wall_s: Callable[[], float]

    def verdicts(
        self, caller: Caller, queue: str, policy: str, *, peer: str | None, program: str | None
    ) -> list[tuple[str, bool]]:
        """Return whether ``caller`` may do each action on ``queue``."""
        read, asked = self._asked(caller, queue, policy, _Source(peer, program))
        found = []
        for action in sorted(_OF_A_QUEUE):
            needed = actions_of(action)
            found.append((action, all(permits(read, asked) for asked.action in needed)))
        return found

    def may_send(self, starter: str, queue: str, policy: str) -> bool:
        """``core.ports.MaySend``: whether a principal may send to ``queue`` now, by no request."""
        read, asked = self._asked(caller_of(starter), queue, policy, _Source())
        return all(permits(read, asked) for asked.action in actions_of(_SEND))

    def _asked(self, caller: Caller, queue: str, policy: str, source: _Source) -> tuple[Policy | None, PolicyRequest]:
        context = RequestContext(base_url="", region=self.region)
        try:
            read = read_policy(policy, queue_arn(queue, context)) if policy else None
        except PolicyError:
            read = NOBODY
        asked = PolicyRequest(
            caller=caller,
            owner=account_of(queue),
            action="",
            secure=self.secure,
            now_s=self.wall_s(),
            region=region_of(queue, context),
            source=source,
        )
        return read, asked
