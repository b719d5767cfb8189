"""A queue's settings: the values that its owner chooses, one name each, whichever protocol set them."""

from collections.abc import Mapping

import msgspec

from veilmq.core import limits

SettingValue = int | str
"""A setting as a command carries it, already parsed and in range."""


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of one queue; durations in seconds, sizes in bytes."""

    visibility_timeout_s: int = limits.VISIBILITY_TIMEOUT_S.default
    delay_s: int = limits.DELAY_S.default
    retention_s: int = limits.RETENTION_S.default
    receive_wait_s: int = limits.RECEIVE_WAIT_S.default
    message_bytes_max: int = limits.MESSAGE_BYTES.default

    def changed(self, changes: Mapping[str, SettingValue]) -> "QueueSettings":
        """Return these settings with ``changes`` (field name → value) put in."""
        return msgspec.structs.replace(self, **changes)

    def first_difference(self, supplied: Mapping[str, SettingValue]) -> str | None:
        """Name the first field whose supplied value differs from ours; fields not supplied do not count."""
        return next((name for name, value in supplied.items() if getattr(self, name) != value), None)
