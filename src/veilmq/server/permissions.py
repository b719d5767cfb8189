"""Which request may be carried out: the policies of queues, read once and cached.

The first request on a queue reads its policy from the store; that request waits for it, and those behind it on the same
queue too, in their order. From then on a check is one look-up in a table. A command that passes here and may change the
policy, or the queue's existence, removes it from the cache once it is done. Other servers may have changed it too, so
after some seconds it is read again, while the cached one goes on to decide.

A request on a queue that does not exist is answered so, whatever the caller may do, and never reaches the store;
commands that make a queue, or list queues, need none.

The permission of a poll that was parked is checked again before each later attempt: after a reload of the credentials
the signature is verified again, and a stale policy is read first, so that a revoked key or a new Deny acts on parked
polls too. While neither has changed, a check is one look-up.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import msgspec

from veilmq.core import commands, topics
from veilmq.core.commands import (
    BrowseQueues,
    Command,
    Done,
    Engine,
    InspectQueue,
    QueuePage,
    QueueView,
    SetAccount,
    ShowAccount,
)
from veilmq.core.topics import Forward
from veilmq.server import protocols
from veilmq.server.authentication import Authentication
from veilmq.server.http_parser import Pending, Request
from veilmq.server.protocols import Denial
from veilmq.wire.exchange import Caller, RequestContext, caller_of
from veilmq.wire.sqs.names import account_of, queue_arn, region_of
from veilmq.wire.sqs.policies import (
    GRANTABLE,
    NOBODY,
    OWNERS,
    Policy,
    PolicyError,
    PolicyRequest,
    Verdict,
    actions_of,
    permits,
    read_policy,
)

log = logging.getLogger(__name__)

FRESH_S = 5.0
"""How long a policy is taken for granted; AWS allows itself 60 s."""

_KEPT_MAX = 65_536
_PASSED_MAX = 256
CHANGING = frozenset({commands.CreateQueue, commands.DeleteQueue, commands.SetQueue, commands.EditQueue})
"""The commands after which what is known of their queue may be wrong."""

ANSWERED_HERE = CHANGING | {commands.ListQueues}
"""The commands whose answers pass through ``Permissions.answering``."""

_policy = lru_cache(maxsize=4_096)(read_policy)
_SEE = "GetQueueAttributes"

_OF_SOURCE = frozenset({commands.StartMove, commands.CancelMove, commands.ListMoves})
_OF_TOPICS = frozenset(
    {
        topics.CreateTopic,
        topics.SetTopic,
        topics.DeleteTopic,
        topics.ShowTopic,
        topics.ListTopics,
        topics.PublishToTopic,
        topics.Subscribe,
        topics.SetSubscription,
        topics.Unsubscribe,
        topics.ShowSubscription,
        topics.ListSubscriptions,
    }
)
"""What an account does with topics of its own; who subscribes a queue of its own needs to be let send there."""

_OF_NO_QUEUE = _OF_TOPICS | {commands.CreateQueue, commands.ListQueues, BrowseQueues, ShowAccount, SetAccount}


class Exchange(Protocol):
    """A request that was understood, on its way to the reply."""

    started_s: float

    @property
    def request(self) -> Request:
        """Return the request."""

    @property
    def action(self) -> str:
        """Return its action."""

    @property
    def permission(self) -> str:
        """Return the action on which a queue's policy decides."""

    def done(self, result: Any) -> None:
        """Answer with the result or the ``VeilmqError`` of the command."""


Again = Callable[[], Pending | None]
"""Begins a request once more."""


class Unknown(Exception):
    """The policy of ``queue``, which decides, is not known yet: ``wait`` for it."""

    def __init__(self, queue: str) -> None:
        """``queue`` is its full name."""
        super().__init__(queue)
        self.queue = queue


class _Kept(msgspec.Struct, eq=False):
    """What is known of one queue; ``waiting`` while nothing is. ``policy`` was read of ``text``.

    ``passed`` has the callers, actions and (where the policy depends on them) addresses that always pass.
    """

    stale_at_s: float
    passed: set[tuple[str, str, str | None]] = msgspec.field(default_factory=set)
    text: str = ""
    policy: Policy | None = None
    varies_by_address: bool = False
    waiting: "list[_Waiting] | None" = None


class _Waiting(msgspec.Struct, eq=False):
    """A request that waits for a policy; ``pending`` is what it waits for after that."""

    exchange: Exchange
    again: Again
    over: bool = False
    hurried: bool = False
    pending: Pending | None = None

    def withdraw(self) -> None:
        """Forget it."""
        self.over = True
        if self.pending is not None:
            self.pending.withdraw()

    def hurry(self) -> None:
        """Have it wait no longer than the policy takes, which is not long."""
        self.hurried = True
        if self.pending is not None:
            self.pending.hurry()

    def end(self, result: Any) -> None:
        """Go on, or answer with the error that the engine gave."""
        if self.over:
            return
        if not isinstance(result, QueueView):
            self.exchange.done(result)
            return
        self.pending = self.again()
        if self.pending is not None and self.hurried:
            self.pending.hurry()


class Permissions:
    """The policies of the queues of one engine. ``wall_s`` is the raw wall clock, ``secure`` whether there is TLS."""

    def __init__(self, engine: Engine, *, region: str, secure: bool, wall_s: Callable[[], float]) -> None:
        """Know nothing yet."""
        self._engine = engine
        self._context = RequestContext(base_url="", region=region)
        self._secure = secure
        self._wall_s = wall_s
        self._kept: dict[str, _Kept] = {}

    def check(self, exchange: Exchange, command: Command, caller: Caller) -> None:
        """Return if ``caller`` may have ``command`` carried out; raises ``Denial`` and ``Unknown``."""
        kind = type(command)
        if kind not in _OF_NO_QUEUE:
            queue = command.source if kind in _OF_SOURCE else command.queue  # type: ignore[attr-defined]
            kept = self._kept.get(queue)
            if (
                kept is None
                or kept.varies_by_address
                or (caller.arn, exchange.action, None) not in kept.passed
                or exchange.started_s >= kept.stale_at_s
            ):  # else it is known to pass
                self._check(queue, exchange, None, caller)
        further = _FURTHER.get(kind)
        if further is not None:
            for other, action in further(command):
                self._check(other, exchange, action, caller)

    def _check(self, queue: str, exchange: Exchange, action: str | None, caller: Caller) -> None:
        """Do the same for one queue and an action of SQS, ``None`` for that of the request itself."""
        kept = self._kept.get(queue)
        if kept is None or kept.waiting is not None:
            raise Unknown(queue)
        if exchange.started_s >= kept.stale_at_s:
            kept.stale_at_s = exchange.started_s + FRESH_S
            self._engine.submit(commands.ShowQueue(queue=queue), partial(self._learn, queue, kept))
        address = exchange.request.source_ip() if kept.varies_by_address else None
        if (caller.arn, action or exchange.action, address) not in kept.passed:
            self._judge(queue, kept, exchange, action, caller)

    def expire(self, queue: str, now_s: float) -> None:
        """Forget the policy of ``queue`` if it is stale, so that the next check waits for the present one."""
        kept = self._kept.get(queue)
        if kept is not None and kept.waiting is None and now_s >= kept.stale_at_s:
            del self._kept[queue]

    def wait(self, exchange: Exchange, unknown: Unknown, again: Again) -> Pending:
        """Call ``again`` once the policy that is ``unknown`` is known; or answer with the engine's error."""
        queue = unknown.queue
        waiting = _Waiting(exchange, again)
        kept = self._kept.get(queue)
        if kept is not None and kept.waiting is not None:
            kept.waiting.append(waiting)
            return waiting
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        made = self._kept[queue] = _Kept(exchange.started_s + FRESH_S, waiting=[waiting])
        self._engine.submit(commands.ShowQueue(queue=queue), partial(self._learn, queue, made))
        return waiting

    def answering(self, exchange: Exchange, command: Command, caller: Caller, done: Done) -> Done:
        """Return ``done`` for one of ``ANSWERED_HERE``: a listing shows what ``caller`` may see alone.

        After a command of ``CHANGING``, what is known of its queue is forgotten first.
        """
        if type(command) is commands.ListQueues:
            return partial(self._show, exchange, caller, done)
        queue: str = command.queue  # type: ignore[attr-defined]

        def forget_first(result: Any) -> None:
            self._kept.pop(queue, None)
            done(result)

        return forget_first

    def narrowed(self, exchange: Exchange, command: BrowseQueues, caller: Caller) -> BrowseQueues:
        """Return ``command`` for what ``caller`` may see; of queues without a policy that is all or nothing."""
        policy_request = self._policy_request(exchange, caller, command.account, _SEE)
        sees_plain = all(permits(None, policy_request) for policy_request.action in actions_of(_SEE))

        def may_see(view: QueueView) -> bool:
            return self._shows(view, exchange, caller) if view.settings.policy else sees_plain

        return msgspec.structs.replace(command, may_see=may_see)

    def _judge(self, queue: str, kept: _Kept, exchange: Exchange, action: str | None, caller: Caller) -> None:
        """Judge a request; remember one that passes if all of its kind do."""
        policy, actions = kept.policy, actions_of(action or exchange.permission)
        policy_request = self._policy_request(exchange, caller, queue, actions[0])
        for policy_request.action in actions:
            if not permits(policy, policy_request):
                raise self._denied(queue, policy, policy_request)
        if policy is None or not any(map(policy.varies, actions)):
            if len(kept.passed) >= _PASSED_MAX:
                kept.passed.clear()
            address = exchange.request.source_ip() if kept.varies_by_address else None
            kept.passed.add((caller.arn, action or exchange.action, address))

    def _policy_request(self, exchange: Exchange, caller: Caller, queue: str, action: str) -> PolicyRequest:
        """Return what policies decide about; ``queue`` may be the account that lists its queues, too."""
        return PolicyRequest(
            caller=caller,
            owner=account_of(queue),
            action=action,
            secure=self._secure,
            now_s=self._wall_s(),
            region=region_of(queue, self._context),
            source=exchange.request,
        )

    def _show(self, exchange: Exchange, caller: Caller, done: Done, result: Any) -> None:
        """Answer a listing with the views that ``caller`` could have requested one by one."""
        if isinstance(result, QueuePage) and result.views:
            seen = [view for view in result.views if self._shows(view, exchange, caller)]
            result = msgspec.structs.replace(result, views=seen)
        done(result)

    def _shows(self, view: QueueView, exchange: Exchange, caller: Caller) -> bool:
        policy = self._policy_of(view) if view.settings.policy else None
        policy_request = self._policy_request(exchange, caller, view.queue, _SEE)
        return all(permits(policy, policy_request) for policy_request.action in actions_of(_SEE))

    def _learn(self, queue: str, kept: _Kept, result: Any) -> None:
        """Take the engine's answer about a queue, and let those go on that waited for it."""
        waiting, kept.waiting = kept.waiting or (), None
        if isinstance(result, QueueView):
            self._read(kept, result)
        elif self._kept.get(queue) is kept:
            del self._kept[queue]
        for one in waiting:
            one.end(result)

    def _read(self, kept: _Kept, view: QueueView) -> None:
        text = view.settings.policy
        if text == kept.text:
            return
        kept.text, kept.policy, kept.varies_by_address = text, None, False
        kept.passed.clear()
        if text:
            kept.policy = self._policy_of(view)
            kept.varies_by_address = kept.policy.uses_address

    def _policy_of(self, view: QueueView) -> Policy:
        try:
            return _policy(view.settings.policy, queue_arn(view.queue, self._context))
        except PolicyError as error:  # it was fit when it was set, by another version
            log.error("the policy of %s cannot be read, so nobody may do anything: %s", view.queue, error)
            return NOBODY

    def _denied(self, queue: str, policy: Policy | None, policy_request: PolicyRequest) -> Denial:
        return Denial(
            caller=policy_request.caller.arn,
            action=policy_request.action,
            queue=queue_arn(queue, self._context),
            explicit=policy is not None and policy.verdict(policy_request) is Verdict.DENY,
        )


def _of_forward(command: Forward) -> Iterator[tuple[str, str]]:
    yield command.queue, "DeleteMessage"
    for target in dict.fromkeys(entry.target for entry in command.entries):
        yield target, "SendMessage"


def _of_subscription(command: topics.Subscribe) -> Iterator[tuple[str, str]]:
    if command.subscription.queue:
        yield command.subscription.queue, "SendMessage"


def _of_look(command: InspectQueue) -> Iterator[tuple[str, str]]:
    """Receipts of others can end their leases, so they need the permission to delete everything."""
    if command.receipts:
        yield command.queue, "PurgeQueue"


_FURTHER: dict[type[Command], Callable[[Any], Iterator[tuple[str, str]]]] = {
    Forward: _of_forward,
    InspectQueue: _of_look,
    topics.Subscribe: _of_subscription,
}
"""What a command does beside what its own queue's policy decides on: where, and by which action of SQS singly."""


_OF_A_QUEUE = (*GRANTABLE, *(action for action in OWNERS if action not in {"CreateQueue", "ListQueues"}))
_SEND = "SendMessage"


class _Source(NamedTuple):
    """Where a visitor comes from, for conditions of policies; a task has no source."""

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
        read, policy_request = self._policy_request(caller, queue, policy, _Source(peer, program))
        found = []
        for action in sorted(_OF_A_QUEUE):
            needed = actions_of(action)
            found.append((action, all(permits(read, policy_request) for policy_request.action in needed)))
        return found

    def may_send(self, starter: str, queue: str, policy: str) -> bool:
        """``core.commands.MaySend``: whether a principal may send to ``queue`` now, by no request."""
        read, policy_request = self._policy_request(caller_of(starter), queue, policy, _Source())
        return all(permits(read, policy_request) for policy_request.action in actions_of(_SEND))

    def _policy_request(
        self, caller: Caller, queue: str, policy: str, source: _Source
    ) -> tuple[Policy | None, PolicyRequest]:
        context = RequestContext(base_url="", region=self.region)
        try:
            read = read_policy(policy, queue_arn(queue, context)) if policy else None
        except PolicyError:
            read = NOBODY
        policy_request = PolicyRequest(
            caller=caller,
            owner=account_of(queue),
            action="",
            secure=self.secure,
            now_s=self.wall_s(),
            region=region_of(queue, context),
            source=source,
        )
        return read, policy_request


class ParkedPermission(msgspec.Struct, eq=False):
    """An ``Exchange`` of the instant at which a parked poll goes on. ``context`` is that of an unsigned request."""

    exchange: Exchange
    command: Command
    caller: Caller
    protocol: protocols.Protocol
    context: RequestContext
    known: Caller | None
    authentication: Authentication
    permissions: Permissions
    loads: int = 0
    started_s: float = 0.0
    go_on: Done | None = None

    def __post_init__(self) -> None:
        """Note which keys the signature was verified with."""
        self.loads = self.authentication.loads

    @property
    def request(self) -> Request:
        """Return the request that was parked."""
        return self.exchange.request

    @property
    def action(self) -> str:
        """Return its action."""
        return self.exchange.action

    @property
    def permission(self) -> str:
        """Return the action on which a queue's policy decides."""
        return self.exchange.permission

    def check(self, go_on: Done) -> None:
        """Call ``go_on`` with ``None`` where the poll may go on, else with a ``Reply`` or the engine's error."""
        self.go_on = go_on
        self.started_s = perf_counter()
        self.permissions.expire(self.command.queue, self.started_s)  # type: ignore[attr-defined]
        self._check()

    def done(self, result: Any) -> None:
        """Pass the verdict on, or the error with which the policy could not be read."""
        go_on, self.go_on = self.go_on, None
        if go_on is not None:
            go_on(result)

    def _check(self) -> None:
        protocol, verdict = self.protocol, None
        try:
            if self.loads != self.authentication.loads:
                signed = self.authentication.context(self.request, self.context, protocol.verifier, self.known)
                self.caller, self.loads = signed.caller or self.caller, self.authentication.loads
            self.permissions.check(self, self.command, self.caller)
        except protocol.refused as error:
            verdict = protocol.refuse(error, self.context.base_url)
        except Denial as denial:
            verdict = protocol.refuse(protocol.deny(denial), self.context.base_url)
        except Unknown as unknown:
            self.permissions.wait(self, unknown, self._check)
            return
        self.done(verdict)
