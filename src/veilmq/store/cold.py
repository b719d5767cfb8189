"""The cold commands of both dialects by type, and those of them that go on by themselves, a slice at a time.

Nothing is kept here that a restart would have to bring back: a store has a look at each kind of work when it opens, and
a command that makes some says so through ``Transaction.schedule``.
"""

from collections.abc import Callable, Coroutine, Mapping
from math import inf
from typing import Any

from veilmq.core import claims as claim_commands
from veilmq.core import commands
from veilmq.core import topics as topic_commands
from veilmq.core.claims import Abandon, ListWriters, Publish, Stage
from veilmq.core.commands import Clock, Command, Done, InspectLeases, InspectQueue, Peek, SetAccount, ShowAccount, Timer
from veilmq.core.limits import SECOND_MS
from veilmq.core.receipts import CountEvents, ForgetEvents, PlanExport, ReadEvents
from veilmq.core.topics import Forward
from veilmq.store import claims, events, forwards, looks, moves, publications, queue_commands, topics

Cold = Callable[[Any, Any], Coroutine[Any, Any, Any]]
"""A cold command: called with a ``Transaction`` and the command, returns the result or raises a ``VeilmqError``."""

_READS: Mapping[type[Command], Cold] = {
    commands.ShowQueue: queue_commands.show_queue,
    commands.ListQueues: queue_commands.list_queues,
    commands.ListDeadLetterSources: queue_commands.list_sources,
    queue_commands.SurveyQueues: queue_commands.survey,
    ShowAccount: queue_commands.show_account,
    commands.ListMoves: moves.list_moves,
    InspectQueue: looks.look,
    InspectLeases: looks.look_at_leases,
    Peek: looks.peek,
    claim_commands.ReadClaim: claims.read,
    claim_commands.ListSources: claims.list_sources,
    topic_commands.ShowTopic: topics.show_topic,
    topic_commands.ListTopics: topics.list_topics,
    topic_commands.ShowSubscription: topics.show_subscription,
    topic_commands.ListSubscriptions: topics.list_subscriptions,
    topic_commands.ListPushes: topics.list_pushes,
    ListWriters: publications.list_writers,
}

COLD: Mapping[type[Command], Cold] = {
    **_READS,
    commands.CreateQueue: queue_commands.create_queue,
    commands.DeleteQueue: queue_commands.delete_queue,
    commands.PurgeQueue: queue_commands.purge_queue,
    commands.SetQueue: queue_commands.set_queue,
    commands.EditQueue: queue_commands.edit_queue,
    commands.TagQueue: queue_commands.tag_queue,
    SetAccount: queue_commands.set_account,
    commands.StartMove: moves.start,
    commands.CancelMove: moves.cancel,
    moves.MoveStep: moves.step,
    claim_commands.OpenSource: claims.open_source,
    claim_commands.Claim: claims.claim,
    claim_commands.Heartbeat: claims.heartbeat,
    claim_commands.AcknowledgeClaims: claims.acknowledge,
    claim_commands.ReleaseClaim: claims.release,
    claim_commands.EvictMessage: claims.evict,
    claim_commands.CloseSource: claims.close_source,
    claims.ClaimStep: claims.step,
    topic_commands.CreateTopic: topics.create_topic,
    topic_commands.SetTopic: topics.set_topic,
    topic_commands.DeleteTopic: topics.delete_topic,
    topic_commands.Subscribe: topics.subscribe,
    topic_commands.SetSubscription: topics.set_subscription,
    topic_commands.Unsubscribe: topics.unsubscribe,
    topic_commands.PublishToTopic: topics.publish,
    Forward: forwards.forward,
    PlanExport: events.plan_export,
    ReadEvents: events.read_events,
    ForgetEvents: events.forget_events,
    CountEvents: events.count_events,
    Stage: publications.stage,
    Publish: publications.publish,
    Abandon: publications.abandon,
    publications.PublicationStep: publications.step,
}

READS = frozenset(_READS)
"""What changes nothing, so that it may be repeated when an answer was lost."""

SNAPSHOTS: frozenset[type[Command]] = frozenset({claim_commands.ReadClaim, claim_commands.ListSources})
"""Those of them whose statements must all see the store as it is at one instant.

One that finds something to change after all does so, as it was begun or as a command that changes something.
"""

STEPS: tuple[type[Command], ...] = (moves.MoveStep, publications.PublicationStep, claims.ClaimStep)
"""Those that do a slice of what goes on by itself, and return in how many ms the next one is due (``Scheduler``)."""

_PAUSE_MS_AFTER_ERROR = SECOND_MS


class Sweep(Command, frozen=True, kw_only=True):
    """Do a slice of the janitor's work; answers in how many ms the next one is due."""


class Scheduler:
    """Begins ``step`` whenever a slice is due, one at a time."""

    def __init__(
        self, *, step: Callable[[Done], object], clock: Clock, pause_ms_min: int = 0, look_ms_max: float = inf
    ) -> None:
        """``step`` does a slice, and calls what it is given with the ms until the next one, ``None`` or an error.

        A slice follows another one after ``pause_ms_min`` at the earliest, and after ``look_ms_max`` in any case.
        """
        self._step = step
        self._clock = clock
        self._pause_ms_min = pause_ms_min
        self._look_ms_max = look_ms_max
        self._at_ms = inf  # when the next slice is due
        self._timer: Timer | None = None
        self._busy = False
        self._stopped = False

    def look(self, after_ms: float = 0) -> None:
        """Have a slice done after that time, or earlier if one is arranged for then."""
        self._at_ms = min(self._at_ms, self._clock.now_ms() + after_ms)
        self._arm()

    def stop(self) -> None:
        """Begin no more."""
        self._stopped = True
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._busy and not self._stopped and self._at_ms < inf:
            self._timer = self._clock.call_at(int(self._at_ms), self._begin)

    def _begin(self) -> None:
        self._timer, self._at_ms, self._busy = None, inf, True
        self._step(self._ended)

    def _ended(self, due: Any) -> None:
        self._busy = False
        after_ms = inf if due is None else _PAUSE_MS_AFTER_ERROR if isinstance(due, Exception) else due
        self.look(min(self._look_ms_max, max(self._pause_ms_min, after_ms)))
