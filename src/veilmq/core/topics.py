"""Topics: what is published there goes to every subscription that wants it, in one transaction.

A topic stores no messages. Each subscription has a queue: the one it names, or, where it names an address to push to, a
queue of its own (``push_queue``) that no protocol can name, from which the server delivers with retries. So a publish
is a send to several queues at once, all of it or nothing, also after a crash, and what is not delivered yet waits as
every message waits.

A topic is named by ``"account/name"``, a subscription by its topic and its own name (SMQ reference, section 9).
"""

import enum
import re
from collections.abc import Callable, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv6Address

import msgspec

from veilmq.core import limits
from veilmq.core.commands import Command
from veilmq.core.errors import EndpointRefused, VeilmqError
from veilmq.core.messages import NewMessage
from veilmq.core.settings import Settings, SettingValue


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


class TopicSettings(Settings, frozen=True, kw_only=True):
    """All settings of one topic; ``message_bytes_max`` counts what is published as for queues."""

    message_bytes_max: int = limits.SMQ_MESSAGE_BYTES.default
    operations_logged: bool = False


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


# When a push that failed is tried again (SMQ reference, section 9).

_BACKOFF_RETRIES = 3
_BACKOFF_S_MIN, _BACKOFF_S_MAX = 10, 20
_DECAY_RETRIES = 176
_DECAY_S_MAX = 512


def retry_delay_s(strategy: RetryStrategy, failures: int, chance: float) -> int | None:
    """Return the pause after the failure number ``failures``, counted from 1; ``None`` when that was the last one.

    ``chance`` is a random number from 0 up to, not including, 1.
    """
    return _DELAYS[strategy](failures, chance)


def _backoff_s(failures: int, chance: float) -> int | None:
    if failures > _BACKOFF_RETRIES:
        return None
    return _BACKOFF_S_MIN + int(chance * (_BACKOFF_S_MAX - _BACKOFF_S_MIN + 1))


def _decay_s(failures: int, chance: float) -> int | None:
    if failures > _DECAY_RETRIES:
        return None
    return min(1 << (failures - 1), _DECAY_S_MAX)


_DELAYS = {RetryStrategy.BACKOFF: _backoff_s, RetryStrategy.EXPONENTIAL_DECAY: _decay_s}


# URLs that messages may be pushed to, taken apart strictly: what two readers might read otherwise is refused.
#
# A host that ends with a number is an address only in its one usual form, four decimal numbers: others (octal, one
# large number, fewer parts) mean an address to some and a name to others.

PATH_DEFAULT = "/notifications"
"""Where messages are pushed to when the URL names a host alone (SMQ reference, section 9)."""

_URL_CHARACTERS_MAX = 2_048
_URL = re.compile(
    r"(?i:(?P<scheme>https?))://(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>[/?][!$-;=?-Z_a-z~\[\]%]*)?"
)
_NAME = re.compile(
    r"(?:[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?\.?"
)
_LIKE_A_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_PORTS = {"http": 80, "https": 443}


class PushUrl(msgspec.Struct, frozen=True, kw_only=True):
    """``host`` is a name in lower case, without a dot at its end, or an address in its usual form, without brackets.

    ``path`` is all behind the host, as a request names it; ``authority`` is host and port as ``Host`` names them.
    """

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Return the value of the ``Host`` header: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"


def read_push_url(text: str) -> PushUrl:
    """Return the parts of ``text``; raises ``EndpointRefused`` for what is not plainly the URL of a host."""
    match = _URL.fullmatch(text) if len(text) <= _URL_CHARACTERS_MAX else None
    if match is None:
        raise EndpointRefused(
            text,
            "it must be http:// or https://, a host name or address, perhaps a port and a path, of "
            f"{_URL_CHARACTERS_MAX} ASCII characters at the most, no user name, fragment, space or backslash",
        )
    scheme = match["scheme"].lower()
    port = int(match["port"] or _PORTS[scheme])
    if not 1 <= port <= 65_535:
        raise EndpointRefused(text, "its port must be one from 1 to 65535")
    path = match["path"] or PATH_DEFAULT
    return PushUrl(
        secure=scheme == "https",
        host=_host(text, match["host"]),
        port=port,
        path=path if path.startswith("/") else f"/{path}",
    )


def _host(text: str, host: str) -> str:
    if host.startswith("["):
        try:
            return str(IPv6Address(host[1:-1]))
        except AddressValueError:
            raise EndpointRefused(text, "what stands between brackets is no IPv6 address") from None
    name = host.lower().removesuffix(".")
    if _LIKE_A_NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return str(IPv4Address(host))
        except AddressValueError:
            raise EndpointRefused(text, "write an IPv4 address as four decimal numbers with dots between") from None
    if not _NAME.fullmatch(host):
        raise EndpointRefused(text, "its host is no name of a host")
    return name


# Forwarding: a received message goes on to another queue, by one command and in one transaction.
#
# A forward is the send of a message to its *target*, together with its deletion in the *intake*, where its receipt is
# from: whenever the process ends, the message is in exactly one of the two. See ``docs/forwarding.md``.


class ForwardEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Forward the message of ``receipt`` to ``target``, a full name.

    With ``reasons``, perhaps none, it goes there as a dead letter of the intake. They are texts by the names of the
    attributes that tell them, which the message gets beside its own.
    """

    receipt: str
    target: str
    reasons: dict[str, str] | None = None


class Forward(Command, frozen=True, kw_only=True):
    """Move messages in flight of ``queue``, the intake, to other queues. Answers a ``Forwarded`` or an error for each.

    A message keeps its id, body, properties, group and priority. To the target it is sent now: the delay and the
    retention there count from this moment, and it was never received. Two FIFO queues, or two standard ones.

    The receipt must be live; ``ReceiptEnded`` tells why it is not, and nothing is sent then. The other errors of an
    entry are ``ReceiptInvalid``, ``QueueNotFound`` (the target), ``DestinationRefused``, ``MessageTooLong``,
    ``StoreFull``, and in a FIFO intake ``GroupHeld``: an entry before it, of the same group, was refused, and the
    group's order holds. (One that is gone does not count: what asks twice after a lost answer finds it so.)

    In a FIFO target a message is told apart by its id, as a dead letter is, and not by its sender's deduplication id:
    what its intake took for two messages stays two. One whose id was taken as a deduplication id there within
    ``limits.DEDUPLICATION_S``, of another message, is deleted in the intake and not stored again.

    A dead letter is in its target what a receive beyond ``receives_max`` would have made of it: it names the intake as
    its source, so that a move task brings it back; its receives go on, and in standard queues its age; it is visible at
    once, and nobody's duplicate.
    """

    queue: str
    entries: tuple[ForwardEntry, ...]


class Forwarded(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The message is in the target and no longer in the intake; ``sequence`` is ``None`` in standard queues.

    ``id`` is the message's own; of one that was ``duplicate`` it is, with its sequence number, that of the first.
    """

    id: bytes
    sequence: int | None = None
    duplicate: bool = False
