"""A queue's settings: the values that its owner chooses, one name each, whichever protocol set them."""

from collections.abc import Mapping

import msgspec

from veilmq.core import limits

SettingValue = int | str | bool | tuple[str, ...] | None
"""A setting as a command carries it, already parsed and in range."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one queue; durations in seconds, sizes in bytes, other queues by their full names.

    ``fifo`` is chosen at creation, for good. ``deduplication_scope`` and ``throughput_limit`` say whether a FIFO queue
    counts by ``"queue"`` or by ``"group"``. ``in_flight_max`` is ``None`` for the engine's own limit.

    A message received ``receives_max`` times goes to ``dead_letter_queue`` instead of being received once more; both
    are empty (``""``, 0) or neither is. ``redrive_permission`` says which queues may name this one as theirs: ``"all"``
    (``""`` when nobody chose), ``"none"``, or those of ``redrive_sources`` (``"listed"``).

    ``event_log`` is what the event log has of the queue: ``"off"`` or ``"closed"`` (the ends of its receipts), ``None``
    for what the server says.

    ``visibility_rules`` is a routing table (``core.routing``, JSON; ``""`` for none): where a receive names no timeout,
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
