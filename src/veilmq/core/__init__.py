"""The rules of the queue: what is visible, to whom, until when.

Everything here is pure. Time comes in as ``now_ms`` (integer milliseconds since the epoch), bytes and sockets stay
outside, and nothing in this package imports another part of veilmq.
"""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True):
    """The root of commands, results and settings: frozen, and made by keywords, to which types are checked."""
