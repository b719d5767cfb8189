"""The settings of queues and their rules, dead-letter queues, and routing tables.

The store checks the rules, so they hold for every protocol.
"""

from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from veilmq.core import Value, limits
from veilmq.core.errors import DeadLetterQueueRefused, DestinationRefused, SettingsConflict, TooManyTags

SettingValue = int | str | bool | tuple[str, ...] | None
"""A setting in a command, parsed and in range."""

# Routing tables: visibility timeouts by the routing key of a message.

ROUTING_ATTRIBUTE_DEFAULT = "Type"
"""The name of the message attribute whose text is the routing key."""


class TimeoutClass(Value):
    """One class of a routing table; ``queue`` is where ``route`` forwards its messages."""

    name: str
    visibility_timeout_s: int
    queue: str = ""


class RoutingTable(msgspec.Struct, frozen=True, kw_only=True):
    """The class of each routing key, as an index into ``classes``, which are in rising order of their timeouts.

    ``default`` is the class of other keys. Each expired lease moves a message to the next class, up to the last.
    """

    version: int
    attribute: str = ROUTING_ATTRIBUTE_DEFAULT
    classes: tuple[TimeoutClass, ...]
    keys: dict[str, int] = {}
    default: int

    def class_of(self, key: str, receives_before: int = 0) -> TimeoutClass:
        """Return the class of a message with ``key`` after ``receives_before`` expired leases."""
        index = self.keys.get(key, self.default) + receives_before
        return self.classes[min(index, len(self.classes) - 1)]

    def timeout_s(self, key: str, receives_before: int) -> int:
        """Return the timeout of a message; see ``class_of``."""
        return self.class_of(key, receives_before).visibility_timeout_s


class TableError(ValueError):
    """The text is not a routing table; ``str()`` says what to correct."""


_decode_table = msgspec.json.Decoder(RoutingTable).decode


def read_table(text: str | bytes) -> RoutingTable:
    """Parse a routing table in JSON; raises ``TableError``."""
    try:
        table = _decode_table(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TableError(f"A routing table is JSON with version, classes, keys and default: {error}.") from None
    timeouts_s = [each.visibility_timeout_s for each in table.classes]
    if not timeouts_s:
        raise TableError("A routing table needs at least one class.")
    allowed = limits.VISIBILITY_TIMEOUT_S
    for each in table.classes:
        if not allowed.holds(each.visibility_timeout_s):
            raise TableError(
                f"The visibility_timeout_s of the class {each.name!r} must be {allowed.minimum} to {allowed.maximum}."
            )
    if timeouts_s != sorted(timeouts_s):
        raise TableError("The classes must be in rising order of their visibility_timeout_s.")
    for name, index in (("default", table.default), *((f"class of {key!r}", at) for key, at in table.keys.items())):
        if not 0 <= index < len(timeouts_s):
            raise TableError(f"The {name} is {index}, and the classes are 0 to {len(timeouts_s) - 1}.")
    return table


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the settings of queues and topics."""

    def changed(self, changes: Mapping[str, SettingValue]) -> Self:
        """Return a copy with ``changes``, by field name."""
        return msgspec.structs.replace(self, **changes)

    def first_difference(self, supplied: Mapping[str, SettingValue]) -> str | None:
        """Return the first field of ``supplied`` whose value differs from the present one, if any."""
        return next((name for name, value in supplied.items() if getattr(self, name) != value), None)


class AccountSettings(Value):
    """The settings of an account, which are stored and shown but have no effect (SMQ reference, section 4.14).

    ``logging_bucket`` is where SMQ would write operation logs; empty for none.
    """

    logging_bucket: str = ""


class QueueSettings(Settings, frozen=True, kw_only=True):
    """All settings of one queue; other queues are named by their full names.

    - ``fifo`` cannot change. ``deduplication_scope`` and ``throughput_limit`` of a FIFO queue are ``"queue"`` or
      ``"group"``. ``in_flight_max`` of ``None`` is the limit of the engine.
    - A message that was received ``receives_max`` times is moved to ``dead_letter_queue`` instead of received again;
      both are set or neither (``""``, 0). ``redrive_permission`` names the queues that may use this one as dead-letter
      queue: ``"all"`` (also ``""``, the default), ``"none"``, or ``"listed"`` (``redrive_sources``).
    - ``visibility_rules`` is a routing table (JSON; ``""`` for none) with the timeouts for receives that give none.
      ``event_log`` is ``"off"`` or ``"closed"`` (the ends of receipts), ``None`` for the server's default.
    - More than ``receives_per_s_max`` receives in a second are refused (0: no limit; SMQ's TenantRateLimitPolicy).
      ``smq_base64``: bodies are base64 over SMQ and stored decoded, so both protocols have the same text.
      ``operations_logged`` is SMQ's LoggingEnabled.
    - ``policy`` is the document of a protocol, stored unchanged. Encryption settings are stored and shown, without
      effect.
    - ``purges`` counts the purges of a FIFO queue. Deduplication keys contain it, so a purge invalidates them.
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


def _has_bad_rules(settings: QueueSettings) -> bool:
    try:
        if settings.visibility_rules:
            read_table(settings.visibility_rules)
    except TableError:
        return True
    return False


RULES: tuple[tuple[str, Callable[[QueueSettings], bool], str], ...] = (
    ("visibility_rules", _has_bad_rules, "The visibility rules are not a routing table; give one, or none."),
    (
        "content_deduplication",
        lambda settings: settings.content_deduplication and not settings.fifo,
        "Only FIFO queues deduplicate by content; leave it out, or create a FIFO queue.",
    ),
    (
        "deduplication_scope",
        lambda settings: settings.deduplication_scope != "queue" and not settings.fifo,
        "Only FIFO queues have a deduplication scope; leave it out, or create a FIFO queue.",
    ),
    (
        "throughput_limit",
        lambda settings: settings.throughput_limit != "queue" and not settings.fifo,
        "Only FIFO queues have a throughput limit of their own; leave it out, or create a FIFO queue.",
    ),
    (
        "throughput_limit",
        lambda settings: settings.throughput_limit == "group" and settings.deduplication_scope != "group",
        "A throughput limit by group needs a deduplication scope by group; set both.",
    ),
    (
        "receives_max",
        lambda settings: bool(settings.dead_letter_queue) is not bool(settings.receives_max),
        "A dead-letter queue and a maximum number of receives belong together; give both or neither.",
    ),
    (
        "redrive_sources",
        lambda settings: bool(settings.redrive_sources) and settings.redrive_permission != "listed",
        "Source queues are listed only with the permission for listed queues; change the permission, or list none.",
    ),
    (
        "kms_key",
        lambda settings: bool(settings.kms_key) and settings.managed_encryption,
        "A queue is encrypted with a key of its own or with a managed one; choose one of them.",
    ),
)
"""(setting to correct, whether settings break the rule, error text), by the SQS API Reference, SetQueueAttributes.

Rules are checked on the settings after a change. Those that depend on other queues are below.
"""


def checked_settings(before: QueueSettings | None, changes: Mapping[str, SettingValue]) -> QueueSettings:
    """Return the settings of a queue after ``changes``; ``before`` is ``None`` for a new queue.

    Enabling one kind of encryption disables the other, unless both are given. Raises ``SettingsConflict``.
    """
    if changes.get("kms_key"):
        changes = {"managed_encryption": False, **changes}
    elif changes.get("managed_encryption"):
        changes = {"kms_key": "", **changes}
    after = (before or QueueSettings()).changed(changes)
    if before is not None and after.fifo != before.fifo:
        raise SettingsConflict("fifo", "A queue cannot change between FIFO and standard; create another queue.")
    for setting, is_broken, why in RULES:
        if is_broken(after):
            raise SettingsConflict(setting, why)
    return after


def merged_tags(tags: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return ``tags`` updated with ``more``; raises ``TooManyTags``."""
    merged = {**tags, **more}
    if len(merged) > limits.SQS_TAGS_MAX:
        raise TooManyTags(limits.SQS_TAGS_MAX)
    return merged


# Dead-letter queues, and destinations of moves and forwards. Queues are full names, or plain names if all are of one
# account.
#
# A dead letter of a standard queue keeps its time of sending and the rest of its retention; in FIFO queues both begin
# anew. It keeps its receive count and first receive, but ``receives_max`` of the dead-letter queue counts from the move
# (SQS Developer Guide, "Using dead-letter queues"; ``docs/decisions/0006-moved-messages.md``).


def dead_letter_refusal(
    source: str, settings: QueueSettings, target: str, target_settings: QueueSettings | None
) -> str | None:
    """Return the reason why ``target`` cannot be the dead-letter queue of ``source``, ``None`` if it can.

    ``target_settings`` is ``None`` if the target does not exist.
    """
    if target == source and target_settings is not None:
        return str(self_reference_error(source))
    if _account_of(target) != _account_of(source):
        return f"The dead-letter queue {target} belongs to another account than {source}; name one of the same account."
    if target_settings is None:
        return f"The dead-letter queue {target} does not exist; create it first."
    if target_settings.fifo != settings.fifo:
        return f"The dead-letter queue {target} has another type than {source}; both must be FIFO queues, or neither."
    is_listed = target_settings.redrive_permission != "listed" or source in target_settings.redrive_sources
    if target_settings.redrive_permission == "none" or not is_listed:
        return f"The queue {target} does not allow {source} to use it as a dead-letter queue; change its permission."
    return None


def self_reference_error(queue: str) -> DeadLetterQueueRefused:
    """Return the error for a queue that is its own dead-letter queue, which some protocols refuse."""
    return DeadLetterQueueRefused(queue, f"The queue {queue} cannot be its own dead-letter queue; name another one.")


def check_destination(
    source: str, settings: QueueSettings, target: str, target_settings: QueueSettings, *, verb: str
) -> None:
    """Raise ``DestinationRefused`` unless ``source`` messages can be "moved" or "forwarded" (``verb``) to ``target``.

    A move stays within the account.
    """
    why = None
    if target == source:
        why = f"Messages of {target} cannot be {verb} to itself; name another queue."
    elif verb == "moved" and _account_of(target) != _account_of(source):
        why = f"The queue {target} belongs to another account than {source}; name one of the same account."
    elif target_settings.fifo != settings.fifo:
        why = f"The queue {target} has another type than {source}: both must be FIFO queues, or neither."
    if why is not None:
        raise DestinationRefused(target, why)


def _account_of(queue: str) -> str:
    return queue.rpartition("/")[0]
