"""Which queue a message goes to: what rules and tables have in common."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from veilmq.client.messages import ReceivedMessage
from veilmq.core.routing import RoutingTable


class Route(NamedTuple):
    """Where a message goes, and by which ``rule``: its number, or the name of a table's class; ``None`` for none."""

    queue: str
    rule: str | None = None


class Router(Protocol):
    """Decides by the message alone, so that it decides the same whenever it is asked again."""

    @property
    def targets(self) -> Mapping[str, int | None]:
        """Return every queue that messages may go to, with the visibility timeout that it is to have, if any."""

    def route(self, message: ReceivedMessage) -> Route:
        """Return where the message goes."""


class RoutesError(ValueError):
    """Rules, or a table, by which nothing can be forwarded; says in a sentence what to correct."""


class TableRouter:
    """Routes by a routing table: the class of the message's kind of work.

    How often the message was received before does not count: in the intake nobody worked at it.
    """

    def __init__(self, table: RoutingTable) -> None:
        """``table`` must name a queue for each class; raises ``RoutesError``."""
        for each in table.classes:
            if not each.queue:
                raise RoutesError(f"The class {each.name} of the routing table names no queue to forward to.")
        self._table = table
        self.targets: Mapping[str, int | None] = {each.queue: each.visibility_timeout_s for each in table.classes}

    def route(self, message: ReceivedMessage) -> Route:
        """Return the queue of the message's class."""
        attribute = message.attributes.get(self._table.attribute)
        kind = "" if attribute is None else attribute.text or ""
        found = self._table.class_of(kind)
        return Route(found.queue, found.name if kind in self._table.keys else None)
