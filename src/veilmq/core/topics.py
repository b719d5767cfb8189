"""Topics: what is published there goes to every subscription that wants it, in one transaction.

A topic stores no messages. Each subscription has a queue: the one it names, or, where it names an address to push to, a
queue of its own (``push_queue``) that no protocol can name, from which the server delivers with retries. So a publish
is a send to several queues at once, all of it or nothing, also after a crash, and what is not delivered yet waits as
every message waits.

A topic is named by ``"account/name"``, a subscription by its topic and its own name (SMQ reference, section 9). Errors
are in ``core.topic_errors``.
"""

import enum
from collections.abc import Callable, Mapping

import msgspec

from veilmq.core import limits
from veilmq.core.commands import Command, NewMessage
from veilmq.core.errors import VeilmqError
from veilmq.core.settings import SettingValue


class RetryStrategy(enum.Enum):
    """How often a push that failed is tried again."""

    BACKOFF = "backoff"
    """Three times, after 10 to 20 s each."""
    EXPONENTIAL_DECAY = "exponential decay"
    """176 times, after 1, 2, 4 … 512 s and then every 512 s: a day."""


class NotificationFormat(enum.Enum):
    """What a subscription gets of a message: a document about it, or its body alone."""

    XML = "xml"
    JSON = "json"
    SIMPLIFIED = "simplified"


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one topic; ``message_bytes_max`` counts what is published as for queues."""

    message_bytes_max: int = limits.SMQ_MESSAGE_BYTES.default
    operations_logged: bool = False

    def changed(self, changes: Mapping[str, SettingValue]) -> "TopicSettings":
        """Return these settings with ``changes`` (field name → value) put in."""
        return msgspec.structs.replace(self, **changes)

    def first_difference(self, supplied: Mapping[str, SettingValue]) -> str | None:
        """Name the first field whose supplied value differs from ours; fields not supplied do not count."""
        return next((name for name, value in supplied.items() if getattr(self, name) != value), None)


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Where a topic's messages go. Exactly one of ``queue`` (a full name) and ``push_url`` is not empty.

    ``endpoint`` is the text it was subscribed with. Messages whose tag is not ``filter_tag`` are left out; empty: none.
    """

    topic: str
    name: str
    endpoint: str
    queue: str = ""
    push_url: str = ""
    filter_tag: str = ""
    strategy: RetryStrategy = RetryStrategy.BACKOFF
    format: NotificationFormat = NotificationFormat.XML

    def wants(self, tag: str) -> bool:
        """Tell whether a message with ``tag`` goes to this subscription."""
        return not self.filter_tag or self.filter_tag == tag


def push_queue(topic: str, subscription: str) -> str:
    """Return the full name of the queue of a subscription that is pushed: no protocol has an account of that form."""
    account, _, name = topic.partition("/")
    return f"{account}~push/{name}~{subscription}"


PUSHES = "~pushes"
"""What ``Engine.watch`` takes, in place of a queue, to be told when subscriptions that are pushed change."""


class CreateTopic(Command, frozen=True, kw_only=True):
    """Create ``topic``, or find it with the same supplied settings. Answers ``TopicView``. Error ``TopicExists``."""

    topic: str
    settings: Mapping[str, SettingValue] = {}


class SetTopic(Command, frozen=True, kw_only=True):
    """Change the supplied settings of ``topic``. Answers ``None``. Error ``TopicNotFound``."""

    topic: str
    settings: Mapping[str, SettingValue]


class DeleteTopic(Command, frozen=True, kw_only=True):
    """Delete ``topic`` and its subscriptions, with what was not pushed yet. Answers ``None``. Error ``TopicNotFound``.

    What is in queues stays there.
    """

    topic: str


class ShowTopic(Command, frozen=True, kw_only=True):
    """Tell the settings of ``topic``. Answers ``TopicView``. Error ``TopicNotFound``."""

    topic: str


class ListTopics(Command, frozen=True, kw_only=True):
    """List topics of ``account`` whose names begin with ``prefix``, by name, after the name ``after``.

    Answers ``TopicPage`` with at most ``count`` views.
    """

    account: str
    prefix: str = ""
    after: str = ""
    count: int = limits.SMQ_LIST_RESULTS.default


class Subscribe(Command, frozen=True, kw_only=True):
    """Subscribe, or find the same subscription. Answers ``SubscriptionView``.

    Errors: ``TopicNotFound``, ``SubscriptionExists``, ``TooManySubscriptions``, ``QueueNotFound``.
    """

    subscription: Subscription


class SetSubscription(Command, frozen=True, kw_only=True):
    """Change how pushes of a subscription are tried again. Answers ``None``.

    Errors: ``TopicNotFound``, ``SubscriptionNotFound``.
    """

    topic: str
    name: str
    strategy: RetryStrategy


class Unsubscribe(Command, frozen=True, kw_only=True):
    """End a subscription, with what was not pushed yet. Answers ``None``.

    Errors: ``TopicNotFound``, ``SubscriptionNotFound``.
    """

    topic: str
    name: str


class ShowSubscription(Command, frozen=True, kw_only=True):
    """Tell about a subscription. Answers ``SubscriptionView``. Errors: ``TopicNotFound``, ``SubscriptionNotFound``."""

    topic: str
    name: str


class ListSubscriptions(Command, frozen=True, kw_only=True):
    """List the subscriptions of ``topic`` as ``ListTopics`` lists topics. Answers ``SubscriptionPage``.

    Error ``TopicNotFound``.
    """

    topic: str
    prefix: str = ""
    after: str = ""
    count: int = limits.SMQ_LIST_RESULTS.default


class ListPushes(Command, frozen=True, kw_only=True):
    """Tell of every subscription of the store that is pushed. Answers a list of ``Subscription``; see ``PUSHES``."""


class Notification(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message on its way to one subscription; ``id`` has 16 bytes and is the same for all of them."""

    subscription: Subscription
    id: bytes
    published_at_ms: int


class PublishToTopic(Command, frozen=True, kw_only=True):
    """Send a message to every subscription of ``topic`` that wants ``tag``. Answers ``PublishedMessage``.

    ``make`` is pure and returns what the queue of one subscription is to store; its ``size_bytes`` is what that queue's
    limit is compared with. ``size_bytes`` of the command is checked against the topic. In FIFO queues the message's id
    tells it apart. Errors: ``TopicNotFound``, ``MessageTooLong``, ``StoreFull``.
    """

    topic: str
    size_bytes: int
    make: Callable[[Notification], NewMessage]
    tag: str = ""


class PublishedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message has the ``id`` (16 bytes) and is in ``deliveries`` queues.

    ``undeliverable`` names the subscriptions that got nothing, as their queue does not exist any more or refused it,
    each with the reason.
    """

    id: bytes
    deliveries: int
    undeliverable: tuple[tuple[str, VeilmqError], ...] = ()


class TopicView(msgspec.Struct, frozen=True, kw_only=True):
    """One topic as its owner sees it; ``is_new`` where the command has just made it.

    ``messages`` counts what waits to be pushed.
    """

    topic: str
    settings: TopicSettings
    created_at_ms: int
    modified_at_ms: int
    messages: int = 0
    is_new: bool = False


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription; ``is_new`` where the command has just made it."""

    subscription: Subscription
    created_at_ms: int
    modified_at_ms: int
    is_new: bool = False


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of topics, in order; ``more`` tells whether any follow."""

    topics: list[TopicView]
    more: bool


class SubscriptionPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of subscriptions, in order; ``more`` tells whether any follow."""

    subscriptions: list[SubscriptionView]
    more: bool
