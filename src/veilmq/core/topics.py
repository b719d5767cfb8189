"""Topics, which send one message to several queues, and forwards, which move messages between queues; in transactions.

A topic stores no messages. Each subscription has a queue: the one it names or, for a push URL, a private queue
(``push_queue``) from which the server delivers with retries. A publish sends to all of these queues or to none, also
after a crash.

The full name of a topic is ``"account/name"``; a subscription has a name within its topic (SMQ reference, section 9).
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
    """How failed pushes are retried (SMQ reference, section 9)."""

    BACKOFF = "backoff"
    """Three retries, each after 10 to 20 s."""
    EXPONENTIAL_DECAY = "exponential decay"
    """176 retries in a day: after 1, 2, 4 … 512 s, then every 512 s."""


def retry_delay_s(strategy: RetryStrategy, failures: int, chance: float) -> int | None:
    """Return the delay of the next retry after ``failures`` failures, ``None`` after the last attempt.

    ``chance`` is a random number in [0, 1).
    """
    if strategy is RetryStrategy.BACKOFF:
        return 10 + int(chance * 11) if failures <= 3 else None
    return min(1 << (failures - 1), 512) if failures <= 176 else None


class NotificationFormat(enum.Enum):
    """The format of a message for a subscription: a document in XML or JSON, or its body only."""

    XML = "xml"
    JSON = "json"
    SIMPLIFIED = "simplified"


class TopicSettings(Settings, frozen=True, kw_only=True):
    """All settings of one topic; ``message_bytes_max`` limits published messages, counted as in queues."""

    message_bytes_max: int = limits.SMQ_MESSAGE_BYTES.default
    operations_logged: bool = False


class Subscription(Value):
    """A target of the messages of a topic. Exactly one of ``queue`` (a full name) and ``push_url`` is not empty.

    ``endpoint`` is the target as the client gave it. A ``filter_tag`` selects messages with that tag.
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
    """Return the full name of the queue of a push subscription; clients cannot name it, as no account has this form."""
    account, _, name = topic.partition("/")
    return f"{account}~push/{name}~{subscription}"


PUSHES = "~pushes"
"""Instead of a queue, a name for ``Engine.watch`` to watch for changes of push subscriptions."""


class TopicCommand(Command):
    """A command on ``topic``. All but ``CreateTopic`` fail with ``TopicNotFound`` if it does not exist."""

    topic: str


class CreateTopic(TopicCommand):
    """Create ``topic``, or return it if it has the given settings. Result: ``TopicView``. Error: ``TopicExists``."""

    settings: Mapping[str, SettingValue] = {}


class SetTopic(TopicCommand):
    """Change the given settings of ``topic``. Result: ``None``."""

    settings: Mapping[str, SettingValue]


class DeleteTopic(TopicCommand):
    """Delete ``topic``, its subscriptions and their unpushed messages; messages in queues stay. Result: ``None``."""


class ShowTopic(TopicCommand):
    """Return the settings of ``topic``. Result: ``TopicView``."""


class ListTopics(Command):
    """List up to ``count`` topics of ``account`` by name, from the first name after ``after``. Result: ``TopicPage``.

    Names begin with ``prefix``.
    """

    account: str
    prefix: str = ""
    after: str = ""
    count: int = limits.SMQ_LIST_RESULTS.default


class ListSubscriptions(TopicCommand):
    """List the subscriptions of ``topic``, paged like ``ListTopics``. Result: ``SubscriptionPage``."""

    prefix: str = ""
    after: str = ""
    count: int = limits.SMQ_LIST_RESULTS.default


class Subscribe(Command):
    """Add a subscription, or return it if an equal one exists. Result: ``SubscriptionView``.

    Errors: ``TopicNotFound``, ``SubscriptionExists``, ``TooManySubscriptions``, ``QueueNotFound``.
    """

    subscription: Subscription


class SubscriptionCommand(TopicCommand):
    """A command on the subscription ``name``. Error: ``SubscriptionNotFound``."""

    name: str


class SetSubscription(SubscriptionCommand):
    """Change the retry strategy of pushes. Result: ``None``."""

    strategy: RetryStrategy


class Unsubscribe(SubscriptionCommand):
    """Delete a subscription and its unpushed messages. Result: ``None``."""


class ShowSubscription(SubscriptionCommand):
    """Return a subscription. Result: ``SubscriptionView``."""


class ListPushes(Command):
    """List the push subscriptions of the store (``PUSHES`` watches them). Result: a list of ``Subscription``."""


class Notification(Value, gc=False):
    """One published message for one subscription; ``id`` (16 bytes) is the same for all subscriptions."""

    subscription: Subscription
    id: bytes
    published_at_ms: int


class PublishToTopic(TopicCommand):
    """Send a message to each subscription of ``topic`` whose filter matches ``tag``. Result: ``PublishedMessage``.

    ``make`` is pure and returns the message for one subscription. The ``size_bytes`` of that message is checked against
    the limit of the queue, ``size_bytes`` of the command against that of the topic. In FIFO queues the message id is
    the deduplication id. Errors: ``TopicNotFound``, ``MessageTooLong``, ``StoreFull``.
    """

    size_bytes: int
    make: Callable[[Notification], NewMessage]
    tag: str = ""


class PublishedMessage(Value, gc=False):
    """A published message: its ``id`` (16 bytes) and the number of queues that have it.

    ``undeliverable`` has the name and the error of each subscription whose queue is missing or refused the message.
    """

    id: bytes
    deliveries: int
    undeliverable: tuple[tuple[str, VeilmqError], ...] = ()


class TopicView(Value):
    """One topic; ``is_new`` if the command created it, ``messages`` is the number of unpushed messages."""

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


# Push URLs are parsed strictly: URLs that parsers may interpret differently are refused. A host that ends with a number
# must be an address of four decimal numbers; other forms (octal, one large number, fewer parts) are an address to some
# parsers and a name to others.

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
    """A parsed push URL; ``path`` includes the query.

    ``host`` is a lower-case name without a final dot, or an address in its usual form without brackets.
    """

    secure: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the ``Host`` header, without the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.secure else "http"] else f"{host}:{self.port}"


def read_push_url(text: str) -> PushUrl:
    """Parse a push URL; raises ``EndpointRefused``."""
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


# A forward sends a message to its *target* and deletes it from the *intake*, the queue of its receipt. After a crash at
# any time the message is in exactly one of them (``docs/forwarding.md``).


class ForwardEntry(Value, gc=False):
    """Forward the message of ``receipt`` to ``target``, a full name.

    Unless ``reasons`` is ``None``, the message becomes a dead letter of the intake, with the reasons as attributes.
    """

    receipt: str
    target: str
    reasons: dict[str, str] | None = None


class Forward(QueueCommand):
    """Move in-flight messages of ``queue``, the intake, to other queues. Result: a ``Forwarded`` or an error for each.

    A message keeps its id, body, properties, group and priority. Delay and retention of the target count from now, and
    the receive count begins at 0. Both queues are of the same type.

    If a receipt is not live, its message is not sent, and the error is ``ReceiptEnded``. Other errors of an entry:
    ``ReceiptInvalid``, ``QueueNotFound`` (the target), ``DestinationRefused``, ``MessageTooLong``, ``StoreFull``, and
    in a FIFO intake ``GroupHeld``: an earlier entry of the same group was refused, so this one would break the order.
    (An entry whose message is deleted does not hold its group: a call repeated after a lost reply has such entries.)

    A FIFO target deduplicates by message id, not by the deduplication id of the sender, so distinct messages of the
    intake stay distinct. If the target had a message with that deduplication id within ``limits.DEDUPLICATION_S``, the
    message is deleted from the intake and not stored again.

    A dead letter is stored like one of a receive beyond ``receives_max``: its source is the intake, so a move task
    returns it; it keeps its receive count and, in standard queues, its age; it is visible immediately and never a
    duplicate.
    """

    entries: tuple[ForwardEntry, ...]


class Forwarded(Value, gc=False):
    """A forwarded message; ``sequence`` is ``None`` in standard queues.

    For a ``duplicate``, id and sequence are those of the first message.
    """

    id: bytes
    sequence: int | None = None
    duplicate: bool = False
