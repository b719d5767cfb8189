"""A queue's settings: the values that its owner chooses, one name each, and which of them fit together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from veilmq.core import limits
from veilmq.core.errors import DeadLetterQueueRefused, SettingsConflict, TooManyTags

SettingValue = int | str | bool | tuple[str, ...] | None
"""A setting as a command carries it, already parsed and in range."""


# Routing tables: what kind of work a message is, as its sender said, and which visibility timeout that deserves.

ATTRIBUTE_DEFAULT = "Type"
"""The name of the message attribute whose text is the routing key."""


class TimeoutClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class of a routing table: its visibility timeout, and the queue that takes it where there are several."""

    name: str
    visibility_timeout_s: int
    queue: str = ""


class RoutingTable(msgspec.Struct, frozen=True, kw_only=True):
    """Which class each routing key belongs to: an index into ``classes``, which are in rising order of their timeouts.

    ``default`` is the class of keys that are not listed. A message received before (its lease ended unfinished) belongs
    one class higher for each such receive, up to the last.
    """

    version: int
    attribute: str = ATTRIBUTE_DEFAULT
    classes: tuple[TimeoutClass, ...]
    keys: dict[str, int] = {}
    default: int

    def class_of(self, key: str, receives_before: int = 0) -> TimeoutClass:
        """Return the class of a message with that key that was received so often before, in vain."""
        index = self.keys.get(key, self.default) + receives_before
        return self.classes[min(index, len(self.classes) - 1)]

    def timeout_s(self, key: str, receives_before: int) -> int:
        """Return the timeout of a message with that key; see ``class_of``."""
        return self.class_of(key, receives_before).visibility_timeout_s


class TableError(ValueError):
    """Text that is no routing table; says in a sentence what to correct."""


def read_table(text: str | bytes) -> RoutingTable:
    """Return the table that ``text`` (JSON) is; raises ``TableError``."""
    try:
        table = _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TableError(f"A routing table is JSON with version, classes, keys and default: {error}.") from None
    timeouts_s = [each.visibility_timeout_s for each in table.classes]
    if not timeouts_s:
        raise TableError("A routing table needs at least one class.")
    for each in table.classes:
        if not limits.VISIBILITY_TIMEOUT_S.holds(each.visibility_timeout_s):
            raise TableError(
                f"The visibility_timeout_s of the class {each.name!r} must be {limits.VISIBILITY_TIMEOUT_S.minimum} to "
                f"{limits.VISIBILITY_TIMEOUT_S.maximum}."
            )
    if timeouts_s != sorted(timeouts_s):
        raise TableError("The classes must be in rising order of their visibility_timeout_s.")
    for what, index in (("default", table.default), *((f"class of {key!r}", at) for key, at in table.keys.items())):
        if not 0 <= index < len(timeouts_s):
            raise TableError(f"The {what} is {index}, and the classes are 0 to {len(timeouts_s) - 1}.")
    return table


_decode = msgspec.json.Decoder(RoutingTable).decode


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one queue; durations in seconds, sizes in bytes, other queues by their full names.

    ``fifo`` is chosen at creation, for good. ``deduplication_scope`` and ``throughput_limit`` say whether a FIFO queue
    counts by ``"queue"`` or by ``"group"``. ``in_flight_max`` is ``None`` for the engine's own limit.

    A message received ``receives_max`` times goes to ``dead_letter_queue`` instead of being received once more; both
    are empty (``""``, 0) or neither is. ``redrive_permission`` says which queues may name this one as theirs: ``"all"``
    (``""`` when nobody chose), ``"none"``, or those of ``redrive_sources`` (``"listed"``).

    ``event_log`` is what the event log has of the queue: ``"off"`` or ``"closed"`` (the ends of its receipts), ``None``
    for what the server says.

    ``visibility_rules`` is a routing table (JSON; ``""`` for none): where a receive names no timeout,
    each message has that of its class.

    A queue of which more than ``receives_per_s_max`` receives are asked in a second refuses them (0: no such limit;
    SMQ's TenantRateLimitPolicy). ``smq_base64``: bodies cross SMQ in base64 and are kept decoded, so that both
    protocols have the same text. ``operations_logged`` is SMQ's LoggingEnabled.

    ``purges`` counts the purges of a FIFO queue; deduplication ids are stored together with it, so a purge forgets
    them.

    ``policy`` is a protocol's document, kept as it was given. The encryption settings are kept and shown, no more.
    """

    visibility_timeout_s: int = limits.VISIBILITY_TIMEOUT_S.default
    visibility_rules: str = ""
    delay_s: int = limits.DELAY_S.default
    retention_s: int = limits.RETENTION_S.default
    receive_wait_s: int = limits.RECEIVE_WAIT_S.default
    message_bytes_max: int = limits.MESSAGE_BYTES.default
    in_flight_max: int | None = None
    fifo: bool = False
    content_deduplication: bool = False
    deduplication_scope: str = "queue"
    throughput_limit: str = "queue"
    dead_letter_queue: str = ""
    receives_max: int = 0
    redrive_permission: str = ""
    redrive_sources: tuple[str, ...] = ()
    receives_per_s_max: int = 0
    smq_base64: bool = False
    operations_logged: bool = False
    policy: str = ""
    event_log: str | None = None
    managed_encryption: bool = True
    kms_key: str = ""
    kms_data_key_reuse_s: int = limits.SQS_KMS_DATA_KEY_REUSE_S.default
    tags: dict[str, str] = {}
    purges: int = 0

    def changed(self, changes: Mapping[str, SettingValue]) -> "QueueSettings":
        """Return these settings with ``changes`` (field name → value) put in."""
        return msgspec.structs.replace(self, **changes)

    def first_difference(self, supplied: Mapping[str, SettingValue]) -> str | None:
        """Name the first field whose supplied value differs from ours; fields not supplied do not count."""
        return next((name for name, value in supplied.items() if getattr(self, name) != value), None)


class AccountSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``logging_bucket`` is where SMQ would put the records of operations; empty for nowhere."""

    logging_bucket: str = ""


# Which settings of a queue fit together: one row a rule, checked on what a change would lead to.
#
# The engine asks, so that it holds whichever protocol sets them. Whether a dead-letter queue may serve its source
# depends on other queues and is no rule of this table.


@dataclass(frozen=True, slots=True)
class Rule:
    """The ``setting`` to correct where settings are ``broken``, and ``why``: a sentence that says what to do."""

    setting: str
    broken: Callable[[QueueSettings], bool]
    why: str


def _has_bad_rules(settings: QueueSettings) -> bool:
    try:
        if settings.visibility_rules:
            read_table(settings.visibility_rules)
    except TableError:
        return True
    return False


RULES: tuple[Rule, ...] = (
    Rule(
        "visibility_rules",
        _has_bad_rules,
        "The visibility rules are no routing table; give one, or none.",
    ),
    Rule(
        "content_deduplication",
        lambda settings: settings.content_deduplication and not settings.fifo,
        "Only FIFO queues deduplicate by content; leave it out, or create a FIFO queue.",
    ),
    Rule(
        "deduplication_scope",
        lambda settings: settings.deduplication_scope != "queue" and not settings.fifo,
        "Only FIFO queues have a deduplication scope; leave it out, or create a FIFO queue.",
    ),
    Rule(
        "throughput_limit",
        lambda settings: settings.throughput_limit != "queue" and not settings.fifo,
        "Only FIFO queues have a throughput limit of their own; leave it out, or create a FIFO queue.",
    ),
    Rule(
        "throughput_limit",
        lambda settings: settings.throughput_limit == "group" and settings.deduplication_scope != "group",
        "A throughput limit by group needs a deduplication scope by group; set both.",
    ),
    Rule(
        "receives_max",
        lambda settings: bool(settings.dead_letter_queue) is not bool(settings.receives_max),
        "A dead-letter queue and the number of receives after which it is used go together; give both or neither.",
    ),
    Rule(
        "redrive_sources",
        lambda settings: bool(settings.redrive_sources) and settings.redrive_permission != "listed",
        "Queues are listed where the permission is for those that are listed; change the permission or list none.",
    ),
    Rule(
        "kms_key",
        lambda settings: bool(settings.kms_key) and settings.managed_encryption,
        "A queue is encrypted with a key of its own or with a managed one; choose one of them.",
    ),
)
"""Every rule about one queue's settings by themselves (SQS API Reference, "SetQueueAttributes")."""


def settled(before: QueueSettings | None, changes: Mapping[str, SettingValue]) -> QueueSettings:
    """Return the settings of a queue after ``changes``; ``before`` is ``None`` for a new one.

    Choosing one kind of encryption ends the other, unless both are named. Raises ``SettingsConflict``.
    """
    after = (before or QueueSettings()).changed({**_consequences(changes), **changes})
    if before is not None and after.fifo != before.fifo:
        raise SettingsConflict("fifo", "A queue is a FIFO queue or a standard one for good; create another queue.")
    for rule in RULES:
        if rule.broken(after):
            raise SettingsConflict(rule.setting, rule.why)
    return after


def _consequences(changes: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    if changes.get("kms_key"):
        return {"managed_encryption": False}
    return {"kms_key": ""} if changes.get("managed_encryption") else {}


def purged(settings: QueueSettings) -> QueueSettings:
    """Return the settings of a FIFO queue after one more purge: it forgets its deduplication ids."""
    return settings.changed({"purges": settings.purges + 1})


def tagged(tags: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return ``tags`` with ``more`` put over them; raises ``TooManyTags``."""
    both = {**tags, **more}
    if len(both) > limits.SQS_TAGS_MAX:
        raise TooManyTags(limits.SQS_TAGS_MAX)
    return both


# The rules of dead letters: which queue may serve which as its dead-letter queue, and what a message keeps.
#
# A message of a standard queue keeps the time at which it was first sent, and its retention goes on counting from
# there; in FIFO queues both begin anew. Its receive count and its first receive go on either way, for whoever looks at
# the message; a limit of the dead-letter queue itself counts from the move (SQS Developer Guide, "Using dead-letter
# queues"; ``docs/decisions/0006-moved-messages.md`` has what that page leaves open).


def dead_letter_refusal(source: str, ours: QueueSettings, target: str, theirs: QueueSettings | None) -> str | None:
    """Return why the queue ``target`` cannot be the dead-letter queue of ``source``, a sentence; ``None`` if it can.

    Both are full names. ``ours`` are the settings of the source, ``theirs`` those of the target, ``None`` when it
    does not exist.
    """
    if target == source and theirs is not None:
        return str(refusal_of_itself(source))
    if account_of(target) != account_of(source):
        return f"The dead-letter queue {target} is of another account than {source}; name one of the same account."
    if theirs is None:
        return f"The dead-letter queue {target} does not exist; create it first."
    if theirs.fifo != ours.fifo:
        return f"The dead-letter queue {target} is of another type than {source}; both are FIFO queues, or neither is."
    if not allows_source(theirs, source):
        return f"The queue {target} does not allow {source} to use it as a dead-letter queue; change its permission."
    return None


def refusal_of_itself(queue: str) -> DeadLetterQueueRefused:
    """Return the error for a queue that names itself, through a protocol that does not allow it."""
    return DeadLetterQueueRefused(queue, f"The queue {queue} cannot be its own dead-letter queue; name another one.")


def check_dead_letter_queue(source: str, ours: QueueSettings, target: str, theirs: QueueSettings | None) -> None:
    """Raise ``DeadLetterQueueRefused`` unless ``target`` may be set as the dead-letter queue of ``source``.

    Amazon SQS lets a queue name itself. Its messages then stay in it, whatever their receive count.
    """
    why = None if target == source and theirs is not None else dead_letter_refusal(source, ours, target, theirs)
    if why is not None:
        raise DeadLetterQueueRefused(target, why, missing=theirs is None)


def allows_source(target: QueueSettings, source: str) -> bool:
    """Tell whether a queue with the settings ``target`` lets ``source`` use it as its dead-letter queue."""
    if target.redrive_permission == "listed":
        return source in target.redrive_sources
    return target.redrive_permission != "none"


def destination_refusal(source: str, ours: QueueSettings, target: str, theirs: QueueSettings) -> str | None:
    """Return why messages of ``source`` cannot be moved to ``target``, a sentence; ``None`` if they can.

    Both are full names of queues that exist, with their settings.
    """
    if target == source:
        return f"Messages of {target} cannot be moved to itself; name another destination."
    if account_of(target) != account_of(source):
        return f"The destination {target} is of another account than {source}."
    if theirs.fifo != ours.fifo:
        return f"The destination {target} is of another type than {source}."
    return None


def account_of(queue: str) -> str:
    """Return the account in a full name."""
    return queue.partition("/")[0]


def forward_refusal(intake: str, ours: QueueSettings, target: str, theirs: QueueSettings) -> str | None:
    """Return why messages of ``intake`` cannot be forwarded to ``target``, a sentence; ``None`` if they can.

    Both are full names of queues that exist, with their settings.
    """
    if target == intake:
        return f"Messages of {target} cannot be forwarded to itself; name another queue."
    if theirs.fifo != ours.fifo:
        return f"The queue {target} is of another type than {intake}: both are FIFO queues, or neither is."
    return None
