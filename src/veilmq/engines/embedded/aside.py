"""What stands aside: turns and returned messages of noisy groups, until no quiet group has a message to give.

Few groups can be noisy at a time, for each of them has a tenth of something. Their waiting messages stay on disk behind
their turns; of returned ones no more than ``LEASES_MAX`` stand aside, and the others are given in their order.
"""

from heapq import heappop, heappush

from veilmq.engines.embedded.rows import Lease
from veilmq.engines.embedded.turns import Turn

LEASES_MAX = 16_384
NOBODY = -1


class Aside:
    """The turns by group, and the leases by position and, in order, by group; what leaves ``leases`` is gone."""

    __slots__ = ("_order", "favoured", "leases", "turns")

    def __init__(self) -> None:
        """Begin empty."""
        self.turns: dict[int, Turn] = {}
        self.leases: dict[int, Lease] = {}
        self.favoured = NOBODY
        """The group of which a message may be given all the same."""
        self._order: dict[int, list[tuple[int, int]]] = {}  # also of leases that are gone

    def __bool__(self) -> bool:
        """Whether any group stands aside."""
        return bool(self.turns or self.leases)

    @property
    def room(self) -> int:
        """Return how many more leases may stand aside."""
        return LEASES_MAX - len(self.leases)

    def groups(self) -> set[int]:
        """Return the groups of which something stands aside, or stood there lately."""
        return self.turns.keys() | self._order.keys()

    def has(self, group: int) -> bool:
        """Tell whether the group is among them."""
        return group in self.turns or self.first_lease(group) is not None

    def add_lease(self, lease: Lease) -> None:
        """Have a returned message stand aside."""
        assert lease.group_key is not None
        self.leases[lease.position] = lease
        heappush(self._order.setdefault(lease.group_key, []), (lease.visible_at_ms, lease.position))

    def first_lease(self, group: int) -> Lease | None:
        """Return the group's message that returned first; ``None`` when none stands aside."""
        order = self._order.get(group, [])
        while order:
            visible_at_ms, position = order[0]
            lease = self.leases.get(position)
            if lease is not None and lease.visible_at_ms == visible_at_ms:
                return lease
            heappop(order)
        self._order.pop(group, None)
        return None

    def clear(self) -> None:
        """Forget all."""
        self.turns.clear()
        self.leases.clear()
        self._order.clear()
