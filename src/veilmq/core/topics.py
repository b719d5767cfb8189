"""Topics and forwards: one message to several queues, or on to another queue, in one transaction.

A topic stores no messages. Each subscription has a queue: the one it names, or, for a push URL, a queue of its own
(``push_queue``) that no protocol can name, from which the server delivers with retries. A publish sends to these queues
all or nothing, also after a crash.

A topic is named by ``"account/name"``, a subscription by its topic and its own name (SMQ reference, section 9).
"""

import enum
import re
from collections.abc import Callable, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from veilmq.core import Value, limits
from veilmq.core.commands import Command, QueueCommand
from veilmq.core.errors import EndpointRefused, VeilmqError
from veilmq.core.messages import NewMessage
from veilmq.core.settings import Settings, SettingValue


class RetryStrategy(enum.Enum):
    """How often a push that failed is tried again (SMQ reference, section 9)."""

    BACKOFF = "backoff"
    """Three times, after 10 to 20 s each."""
    EXPONENTIAL_DECAY = "exponential decay"
    """176 times, after 1, 2, 4 … 512 s and then every 512 s: a day."""


def retry_delay_s(strategy: RetryStrategy, failures: int, chance: float) -> int | None:
    """Return the pause after the failure number ``failures``, from 1; ``None`` when that was the last attempt.

    ``chance`` is a random number from 0 up to, not including, 1.
    """
    if strategy is RetryStrategy.BACKOFF:
        return 10 + int(chance * 11) if failures <= 3 else None
    return min(1 << (failures - 1), 512) if failures <= 176 else None


class NotificationFormat(enum.Enum):
    """The form in which a subscription gets a message: a document about it, or its body alone."""

    XML = "xml"
    JSON = "json"
    SIMPLIFIED = "simplified"


class TopicSettings(Settings, frozen=True, kw_only=True):
    """All settings of one topic; ``message_bytes_max`` counts what is published as for queues."""

    message_bytes_max: int = limits.SMQ_MESSAGE_BYTES.default
    operations_logged: bool = False


class Subscription(Value):
    """A target of a topic's messages. Exactly one of ``queue`` (a full name) and ``push_url`` is not empty.

    ``endpoint`` is the text it was subscribed with. With a ``filter_tag``, only messages with that tag are sent to it.
    """

    topic: str
    name: str
    endpoint: str
    queue: str = ""
    push_url: str = ""
    filter_tag: str = ""
    strategy: RetryStrategy = RetryStrategy.BACKOFF
    format: NotificationFormat = NotificationFormat.XML


def push_queue(topic: str, subscription: str) -> str:
    """Return the full name of the queue of a push subscription; no protocol has an account of that form."""
    account, _, name = topic.partition("/")
    return f"{account}~push/{name}~{subscription}"


PUSHES = "~pushes"
"""The name that ``Engine.watch`` takes, in place of a queue's, for changes of push subscriptions."""


class TopicCommand(Command):
    """A command on ``topic``. Error of all but ``CreateTopic``: ``TopicNotFound``."""

    topic: str


class CreateTopic(TopicCommand):
    """Create ``topic``, or find it with the same supplied settings. Result: ``TopicView``. Error ``TopicExists``."""

    settings: Mapping[str, SettingValue] = {}


class SetTopic(TopicCommand):
    """Change the supplied settings of ``topic``. Result: ``None``."""

    settings: Mapping[str, SettingValue]


class DeleteTopic(TopicCommand):
    """Delete ``topic``, its subscriptions and messages not pushed yet; those in queues stay. Result: ``None``."""


class ShowTopic(TopicCommand):
    """Return the settings of ``topic``: a ``TopicView``."""


class ListTopics(Command):
    """Return a ``TopicPage``: at most ``count`` topics of ``account`` whose names begin with ``prefix``, by name.

    The page begins behind the name ``after``.
    """

    account: str
    prefix: str = ""
    after: str = ""
    count: int = limits.SMQ_LIST_RESULTS.default


class ListSubscriptions(TopicCommand):
    """Return a ``SubscriptionPage`` of ``topic``, as ``ListTopics`` lists topics."""

    prefix: str = ""
    after: str = ""
    count: int = limits.SMQ_LIST_RESULTS.default


class Subscribe(Command):
    """Subscribe, or find the same subscription. Result: ``SubscriptionView``.

    Errors: ``TopicNotFound``, ``SubscriptionExists``, ``TooManySubscriptions``, ``QueueNotFound``.
    """

    subscription: Subscription


class SubscriptionCommand(TopicCommand):
    """A command on the subscription ``name``. Error ``SubscriptionNotFound``."""

    name: str


class SetSubscription(SubscriptionCommand):
    """Change how pushes are tried again. Result: ``None``."""

    strategy: RetryStrategy


class Unsubscribe(SubscriptionCommand):
    """End a subscription and delete its messages not pushed yet. Result: ``None``."""


class ShowSubscription(SubscriptionCommand):
    """Return a ``SubscriptionView``."""


class ListPushes(Command):
    """Return every push subscription of the store: a list of ``Subscription``; see ``PUSHES``."""


class Notification(Value, gc=False):
    """One message on its way to one subscription; ``id`` has 16 bytes and is the same for all of them."""

    subscription: Subscription
    id: bytes
    published_at_ms: int


class PublishToTopic(TopicCommand):
    """Send a message to every subscription of ``topic`` that wants ``tag``. Result: ``PublishedMessage``.

    ``make`` is pure and returns the message to store for one subscription; its ``size_bytes`` is checked against that
    queue's limit, ``size_bytes`` of the command against the topic's. In FIFO queues the message's id is its
    deduplication id. Errors: ``TopicNotFound``, ``MessageTooLong``, ``StoreFull``.
    """

    size_bytes: int
    make: Callable[[Notification], NewMessage]
    tag: str = ""


class PublishedMessage(Value, gc=False):
    """The message has the ``id`` (16 bytes) and is in ``deliveries`` queues.

    ``undeliverable`` names the subscriptions whose queue does not exist any more or refused it, each with the reason.
    """

    id: bytes
    deliveries: int
    undeliverable: tuple[tuple[str, VeilmqError], ...] = ()


class TopicView(Value):
    """One topic as its owner sees it; ``is_new`` if the command created it, ``messages`` wait to be pushed."""

    topic: str
    settings: TopicSettings
    created_at_ms: int
    modified_at_ms: int
    messages: int = 0
    is_new: bool = False


class SubscriptionView(Value):
    """One subscription; ``is_new`` if the command created it."""

    subscription: Subscription
    created_at_ms: int
    modified_at_ms: int
    is_new: bool = False


class TopicPage(Value):
    """One page of topics, in order; ``more`` if any follow."""

    topics: list[TopicView]
    more: bool


class SubscriptionPage(Value):
    """One page of subscriptions, in order; ``more`` if any follow."""

    subscriptions: list[SubscriptionView]
    more: bool


# Push URLs are parsed strictly: what two parsers might read differently is refused. A host that ends with a number is
# an address only in its one usual form, four decimal numbers: others (octal, one large number, fewer parts) are an
# address to some parsers and a name to others.

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


class PushUrl(Value):
    """``host`` is a name in lower case, without a final dot, or an address in its usual form, without brackets.

    ``path`` is everything behind the host; ``authority`` is host and port, as a ``Host`` header names them.
    """

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"


def read_push_url(text: str) -> PushUrl:
    """Return the parts of ``text``; raises ``EndpointRefused`` for what is not plainly the URL of a host."""
    match = _URL.fullmatch(text) if len(text) <= _URL_CHARACTERS_MAX else None
    if match is None:
        raise EndpointRefused(
            text,
            "it must be http:// or https://, a host name or address, optionally a port and a path, at most "
            f"{_URL_CHARACTERS_MAX} ASCII characters, and no user name, fragment, space or backslash",
        )
    scheme = match["scheme"].lower()
    port = int(match["port"] or _PORTS[scheme])
    if not 1 <= port <= 65_535:
        raise EndpointRefused(text, "its port must be from 1 to 65535")
    path = match["path"] or "/notifications"  # SMQ reference, section 9
    path = path if path.startswith("/") else f"/{path}"
    return PushUrl(secure=scheme == "https", host=_host(text, match["host"]), port=port, path=path)


def _host(text: str, host: str) -> str:
    if host.startswith("["):
        try:
            return str(IPv6Address(host[1:-1]))
        except AddressValueError:
            raise EndpointRefused(text, "the text in brackets is not an IPv6 address") from None
    name = host.lower().removesuffix(".")
    if _LIKE_A_NUMBER.fullmatch(name.rpartition(".")[2]):
        try:
            return str(IPv4Address(host))
        except AddressValueError:
            raise EndpointRefused(text, "write an IPv4 address as four decimal numbers separated by dots") from None
    if not _NAME.fullmatch(host):
        raise EndpointRefused(text, "its host is not a valid host name")
    return name


# A forward sends a message to its *target* and deletes it in the *intake*, the queue of its receipt: after a crash at
# any moment it is in exactly one of them (``docs/forwarding.md``).


class ForwardEntry(Value, gc=False):
    """Forward the message of ``receipt`` to ``target``, a full name.

    With ``reasons``, perhaps none, it becomes a dead letter of the intake; they are added to its attributes, by name.
    """

    receipt: str
    target: str
    reasons: dict[str, str] | None = None


class Forward(QueueCommand):
    """Move messages in flight of ``queue``, the intake, to other queues. Result: a ``Forwarded`` or an error for each.

    A message keeps its id, body, properties, group and priority. The target's delay and retention count from now, and
    its receive count begins at 0. Both queues are FIFO queues, or neither is.

    The receipt must be live; otherwise nothing is sent, and ``ReceiptEnded`` has the reason. The other errors of an
    entry are ``ReceiptInvalid``, ``QueueNotFound`` (the target), ``DestinationRefused``, ``MessageTooLong``,
    ``StoreFull``, and in a FIFO intake ``GroupHeld``: an earlier entry of the same group was refused, and the order of
    the group holds. (An entry whose message is gone does not hold: a repeated call after a lost reply finds it so.)

    A FIFO target deduplicates by the message's id, not by the sender's deduplication id: two messages of the intake
    stay two. Where another message had that id as its deduplication id within ``limits.DEDUPLICATION_S``, the message
    is deleted in the intake and not stored again.

    A dead letter is stored as by a receive beyond ``receives_max``: with the intake as its source, so that a move task
    returns it; with its receive count, and in standard queues its age; visible at once, and never a duplicate.
    """

    entries: tuple[ForwardEntry, ...]


class Forwarded(Value, gc=False):
    """The message is in the target and no longer in the intake; ``sequence`` is ``None`` in standard queues.

    ``id`` is the message's own; with ``duplicate``, id and sequence are those of the first message.
    """

    id: bytes
    sequence: int | None = None
    duplicate: bool = False
