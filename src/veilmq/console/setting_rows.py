"""All settings of a queue with labels and ranges, in groups.

A test checks that none is missing. Ranges are those of ``core.limits``.
"""

from typing import Any, NamedTuple

from veilmq.console.fields import BYTES, SECONDS, Choice, Kind, Number, QueueName, Queues, Text, yes_or_no
from veilmq.core import limits
from veilmq.wire.v1.queues import RANGES

SQS = "SQS"
SMQ = "SMQ"


class SettingRow(NamedTuple):
    """One setting: ``setting`` is its field in ``QueueSettings``.

    ``fifo``: only FIFO queues have it. ``fixed``: it cannot be changed later.
    """

    setting: str
    label: str
    kind: Kind
    fifo: bool = False
    fixed: bool = False


class SettingGroup(NamedTuple):
    """Related settings."""

    title: str
    rows: tuple[SettingRow, ...]


def _number(setting: str, label: str, unit: str, **rest: Any) -> SettingRow:
    return SettingRow(setting, label, Number(allowed=RANGES[setting], unit=unit, **rest))


_SCOPES = (("queue", "queue", "the whole queue"), ("group", "group", "each message group"))

_TIME = (
    _number(
        "visibility_timeout_s",
        "Visibility timeout",
        SECONDS,
        protocols={SQS: limits.VISIBILITY_TIMEOUT_S, SMQ: limits.SMQ_VISIBILITY_TIMEOUT_S},
    ),
    _number("delay_s", "Delay", SECONDS, protocols={SQS: limits.SQS_DELAY_S, SMQ: limits.SMQ_DELAY_S}),
    _number("retention_s", "Retention", SECONDS, protocols={SQS: limits.RETENTION_S, SMQ: limits.SMQ_RETENTION_S}),
    _number(
        "receive_wait_s",
        "Receive wait time",
        SECONDS,
        protocols={SQS: limits.SQS_RECEIVE_WAIT_S, SMQ: limits.SMQ_RECEIVE_WAIT_S},
    ),
    SettingRow(
        "visibility_rules",
        "Visibility rules",
        Text(
            hint=f"A routing table (JSON of up to {limits.VISIBILITY_RULES_BYTES_MAX:,} bytes) that gives each class "
            "of messages its own visibility timeout; empty for none.",
            control="area",
        ),
    ),
)

_LIMITS = (
    _number(
        "message_bytes_max",
        "Max message size",
        BYTES,
        protocols={SQS: limits.MESSAGE_BYTES, SMQ: limits.SMQ_MESSAGE_BYTES},
    ),
    _number("in_flight_max", "Max in flight", "messages", empty="the server's limit"),
    _number("receives_per_s_max", "Max receives per second", "receives per second", zero="no limit"),
)

_FIFO = (
    SettingRow(
        "fifo",
        "FIFO queue",
        yes_or_no("Cannot be changed later. The settings below apply only to FIFO queues."),
        fixed=True,
    ),
    SettingRow(
        "content_deduplication",
        "Deduplicate by content",
        yes_or_no("Use the digest of the body as the deduplication id of messages without one."),
        fifo=True,
    ),
    SettingRow(
        "deduplication_scope",
        "Deduplication scope",
        Choice(values=_SCOPES, hint="The scope in which messages with the same deduplication id are duplicates."),
        fifo=True,
    ),
    SettingRow(
        "throughput_limit",
        "Throughput limit",
        Choice(values=_SCOPES, hint="“Each message group” requires the same deduplication scope."),
        fifo=True,
    ),
)

_DEAD_LETTERS = (
    SettingRow(
        "dead_letter_queue", "Dead-letter queue", QueueName(hint="A queue of this account and type; empty for none.")
    ),
    _number("receives_max", "Max receives", "receives", zero="no dead-letter queue"),
    SettingRow(
        "redrive_permission",
        "Accepts dead letters from",
        Choice(
            values=(
                ("", "", "any queue (default)"),
                ("all", "all", "any queue"),
                ("none", "none", "no queue"),
                ("listed", "listed", "the allowed source queues"),
            ),
            hint="Of this account and type.",
        ),
    ),
    SettingRow(
        "redrive_sources",
        "Allowed source queues",
        Queues(
            hint=f"Up to {limits.SQS_REDRIVE_SOURCES_MAX} queues of this account, one name per line.", control="area"
        ),
    ),
)

_ACCESS = (
    SettingRow(
        "policy",
        "Policy",
        Text(
            hint=f"Permissions for this queue: JSON of up to {limits.SQS_POLICY_BYTES_MAX:,} bytes, as in SQS; "
            "empty: only this account has access.",
            control="area",
        ),
    ),
    SettingRow("managed_encryption", "Managed encryption flag", yes_or_no("Stored only; nothing is encrypted.")),
    SettingRow(
        "kms_key",
        "Encryption key",
        Text(
            hint=f"Up to {limits.SQS_KMS_KEY_CHARACTERS_MAX:,} characters, instead of the managed key; stored only. "
            "Empty for none."
        ),
    ),
    _number("kms_data_key_reuse_s", "Data key reuse period", SECONDS),
)

_OTHER = (
    SettingRow(
        "event_log",
        "Event log",
        Choice(
            values=(
                (None, "", "server default"),
                ("off", "off", "nothing"),
                ("closed", "closed", "the ends of receipts"),
            ),
            hint="The events recorded for statistics and recommended timeouts.",
        ),
    ),
    SettingRow("smq_base64", "Base64-encode bodies over SMQ", yes_or_no("So that both protocols see the same text.")),
    SettingRow("operations_logged", "Operation logging flag", yes_or_no("SMQ's LoggingEnabled; stored only.")),
)

GROUPS: tuple[SettingGroup, ...] = (
    SettingGroup("Time", _TIME),
    SettingGroup("Order", _FIFO),
    SettingGroup("Dead letters", _DEAD_LETTERS),
    SettingGroup("Limits", _LIMITS),
    SettingGroup("Access and encryption", _ACCESS),
    SettingGroup("Protocols and event log", _OTHER),
)
"""All settings but the tags, in the order of the page."""

ROWS: dict[str, SettingRow] = {row.setting: row for group in GROUPS for row in group.rows}

NAME_HINT = (
    f"SQS: up to {limits.SQS_QUEUE_NAME_CHARACTERS_MAX} letters, digits, hyphens and underscores. SMQ: up to "
    f"{limits.SMQ_QUEUE_NAME_CHARACTERS_MAX} letters, digits and hyphens, beginning with a letter or digit. "
    "Only names of FIFO queues may end with .fifo; SQS requires it."
)
