"""The cold commands that both dialects share: the function of each, and which of them only read."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from veilmq.core import claims as claim_commands
from veilmq.core import commands
from veilmq.core import topics as topic_commands
from veilmq.core.account_settings import SetAccount, ShowAccount
from veilmq.core.commands import Command
from veilmq.core.events import CountEvents, ForgetEvents, PlanExport, ReadEvents
from veilmq.core.forwards import Forward
from veilmq.core.looks import LookAtLeases, LookAtQueue, Peek
from veilmq.core.publications import Abandon, ListWriters, Publish, Stage
from veilmq.store import (
    accounts,
    claim_endings,
    claims,
    events,
    forwards,
    looks,
    moves,
    publications,
    queue_commands,
    topics,
)

Cold = Callable[[Any, Any], Coroutine[Any, Any, Any]]
"""A cold command: called with a ``Transaction`` and the command, returns the result or raises a ``VeilmqError``."""

COLD: Mapping[type[Command], Cold] = {
    commands.CreateQueue: queue_commands.create_queue,
    commands.DeleteQueue: queue_commands.delete_queue,
    commands.PurgeQueue: queue_commands.purge_queue,
    commands.SetQueue: queue_commands.set_queue,
    commands.EditQueue: queue_commands.edit_queue,
    commands.TagQueue: queue_commands.tag_queue,
    commands.ShowQueue: queue_commands.show_queue,
    commands.ListQueues: queue_commands.list_queues,
    commands.ListDeadLetterSources: queue_commands.list_sources,
    queue_commands.SurveyQueues: queue_commands.survey,
    ShowAccount: accounts.show_account,
    SetAccount: accounts.set_account,
    commands.StartMove: moves.start,
    commands.CancelMove: moves.cancel,
    commands.ListMoves: moves.list_moves,
    moves.MoveStep: moves.step,
    LookAtQueue: looks.look,
    LookAtLeases: looks.look_at_leases,
    Peek: looks.peek,
    claim_commands.OpenSource: claims.open_source,
    claim_commands.Claim: claims.claim,
    claim_commands.Heartbeat: claims.heartbeat,
    claim_commands.AcknowledgeClaims: claims.acknowledge,
    claim_commands.ReadClaim: claims.read,
    claim_commands.ReleaseClaim: claims.release,
    claim_commands.EvictMessage: claims.evict,
    claim_commands.ListSources: claims.list_sources,
    claim_commands.CloseSource: claims.close_source,
    claim_endings.ClaimStep: claim_endings.step,
    topic_commands.CreateTopic: topics.create_topic,
    topic_commands.SetTopic: topics.set_topic,
    topic_commands.DeleteTopic: topics.delete_topic,
    topic_commands.ShowTopic: topics.show_topic,
    topic_commands.ListTopics: topics.list_topics,
    topic_commands.Subscribe: topics.subscribe,
    topic_commands.SetSubscription: topics.set_subscription,
    topic_commands.Unsubscribe: topics.unsubscribe,
    topic_commands.ShowSubscription: topics.show_subscription,
    topic_commands.ListSubscriptions: topics.list_subscriptions,
    topic_commands.ListPushes: topics.list_pushes,
    topic_commands.PublishToTopic: topics.publish,
    Forward: forwards.forward,
    PlanExport: events.plan_export,
    ReadEvents: events.read_events,
    ForgetEvents: events.forget_events,
    CountEvents: events.count_events,
    Stage: publications.stage,
    Publish: publications.publish,
    Abandon: publications.abandon,
    ListWriters: publications.list_writers,
    publications.PublicationStep: publications.step,
}

STEPS: tuple[type[Command], ...] = (moves.MoveStep, publications.PublicationStep, claim_endings.ClaimStep)
"""Those that do a slice of what goes on by itself, and return in how many ms the next one is due (``background``)."""

READS: frozenset[type[Command]] = frozenset(
    {
        commands.ShowQueue,
        commands.ListQueues,
        commands.ListDeadLetterSources,
        queue_commands.SurveyQueues,
        commands.ListMoves,
        LookAtQueue,
        LookAtLeases,
        Peek,
        ShowAccount,
        claim_commands.ReadClaim,
        claim_commands.ListSources,
        topic_commands.ShowTopic,
        topic_commands.ListTopics,
        topic_commands.ShowSubscription,
        topic_commands.ListSubscriptions,
        topic_commands.ListPushes,
        ListWriters,
    }
)
"""What changes nothing, so that it may be asked once more when an answer was lost."""

SNAPSHOTS: frozenset[type[Command]] = frozenset({claim_commands.ReadClaim, claim_commands.ListSources})
"""Those of them whose statements must all see the store as it is at one instant.

One that finds something to change after all does so, as it was begun or as a command that changes something.
"""
