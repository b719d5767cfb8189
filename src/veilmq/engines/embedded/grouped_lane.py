"""What lanes of message groups have in common: a turn for each group that has messages to give (``turns``)."""

from veilmq.engines.embedded.claimable import ClaimableLane, Stretch
from veilmq.engines.embedded.fresh import BodyCache
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.rows import LaneRow, Lease
from veilmq.engines.embedded.run import ON_DISK
from veilmq.engines.embedded.turns import Turns


class GroupedLane(ClaimableLane):
    """A lane with turns, which end with it."""

    __slots__ = ("_turns", "_turns_swept")

    def __init__(
        self, row: LaneRow, *, journal: Journal, cache: BodyCache, options: EngineOptions, stored: bool
    ) -> None:
        """All as for ``Lane``."""
        self._turns_swept = False
        self._turns = Turns(
            journal=journal,
            cache=cache,
            lane=row.number,
            window_max=options.hidden_window_leases,
            rows_max=options.ready_window_messages,
            horizon=ON_DISK if stored else None,
        )
        # Only now, since the runs of a lane may be made of its turns.
        super().__init__(row, journal=journal, cache=cache, options=options, stored=stored)

    def let_go(self, lease: Lease) -> None:
        """Delete a message that was taken."""
        super().let_go(lease)
        self._hidden.drop(lease.position)

    def take_stretch(self, count: int, now_ms: int, bytes_max: int | None = None) -> Stretch | None:
        """Return ``None``: messages of groups are taken one by one."""
        return None

    def _delete_between(self, start: int, end: int) -> int:
        swept = self._journal.rows("groups_between", start, end) if self.queue is not None else []
        messages = super()._delete_between(start, end)
        for position, _ in swept:
            self._hidden.drop(position)
        self._swept_off(swept)
        return messages

    def _swept_off(self, swept: list[tuple[int, int]]) -> None:
        """Take note of leases, by position and group, that ended with their messages' retention."""
        raise NotImplementedError

    def retire(self) -> None:
        """Part the lane from its queue: everything in it is deleted, and swept in time."""
        super().retire()
        self._turns.clear()

    @property
    def swept(self) -> bool:
        """Whether no row is left that retention or a purge has put out of reach."""
        return super().swept and (self.queue is not None or self._turns_swept)

    def sweep(self, rows_max: int) -> int:
        """Delete rows out of reach, at most ``rows_max`` messages, and as many turns of a lane that was retired."""
        if self.queue is not None:
            return super().sweep(rows_max)
        turns = len(self._journal.write("delete_turns_of", self.number, rows_max))
        self._turns_swept = turns < rows_max
        return turns + super().sweep(rows_max)
