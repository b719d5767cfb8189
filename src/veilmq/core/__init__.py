"""The rules of the queue, as pure functions and frozen values: commands, results, errors, limits, settings, receipts.

Time is an argument (``now_ms``, integer milliseconds since the epoch). Nothing here does I/O or imports another part
of veilmq.
"""

from typing import dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True):
    """Base class of commands, results and settings: frozen, with keyword arguments that type checkers see."""
