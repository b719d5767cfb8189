"""What can be tuned in the embedded engine; the defaults suit one machine."""

from dataclasses import dataclass

from veilmq.core import limits
from veilmq.engines.embedded.positions import SEQUENCES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Sizes of what is kept in memory, and the store's limits.

    ``ready_window_messages`` and ``hidden_window_leases`` bound each lane's two windows; ``body_cache_bytes`` bounds
    the bodies held by all of them. Below ``free_space_reserve_bytes`` of free disk, sends are refused. ``vfs`` names
    an apsw VFS to open the database with, ``database_pages_max`` bounds its size (SQLite's ``max_page_count``), and
    ``lane_sequences_max`` the positions of one half of a lane.
    """

    ready_window_messages: int = limits.READY_WINDOW_MESSAGES
    hidden_window_leases: int = limits.HIDDEN_WINDOW_LEASES
    body_cache_bytes: int = limits.BODY_CACHE_BYTES
    free_space_reserve_bytes: int = limits.FREE_SPACE_RESERVE_BYTES
    vfs: str | None = None
    database_pages_max: int | None = None
    lane_sequences_max: int = SEQUENCES_MAX
