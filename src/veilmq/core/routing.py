"""Routing keys: what kind of work a message is, as its sender said, and which visibility timeout that deserves."""

import msgspec

from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.core.properties import decode

ATTRIBUTE_DEFAULT = "Type"
"""The name of the message attribute whose text is the routing key."""


def key_of(properties: bytes, attribute: str = ATTRIBUTE_DEFAULT) -> str:
    """Return the text of the message attribute ``attribute``; empty when the message has none.

    ``properties`` are encoded as ``core.properties`` does.
    """
    if not properties:
        return ""
    found = decode(properties).attributes.get(attribute)
    return "" if found is None else found.text or ""


class TimeoutClass(msgspec.Struct, frozen=True, kw_only=True):
    """One class of a routing table: its visibility timeout, and the queue that takes it where there are several."""

    name: str
    visibility_timeout_s: int
    queue: str = ""


class RoutingTable(msgspec.Struct, frozen=True, kw_only=True):
    """Which class each routing key belongs to: an index into ``classes``, which are in rising order of their timeouts.

    ``default`` is the class of keys that are not listed. A message received before (its lease ended unfinished) belongs
    one class higher for each such receive, up to the last.
    """

    version: int
    attribute: str = ATTRIBUTE_DEFAULT
    classes: tuple[TimeoutClass, ...]
    keys: dict[str, int] = {}
    default: int

    def class_of(self, key: str, receives_before: int = 0) -> TimeoutClass:
        """Return the class of a message with that key that was received so often before, in vain."""
        index = self.keys.get(key, self.default) + receives_before
        return self.classes[min(index, len(self.classes) - 1)]

    def timeout_s(self, key: str, receives_before: int) -> int:
        """Return the timeout of a message with that key; see ``class_of``."""
        return self.class_of(key, receives_before).visibility_timeout_s


class TableError(ValueError):
    """Text that is no routing table; says in a sentence what to correct."""


def read_table(text: str | bytes) -> RoutingTable:
    """Return the table that ``text`` (JSON) is; raises ``TableError``."""
    try:
        table = _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TableError(f"A routing table is JSON with version, classes, keys and default: {error}.") from None
    timeouts_s = [each.visibility_timeout_s for each in table.classes]
    if not timeouts_s:
        raise TableError("A routing table needs at least one class.")
    for each in table.classes:
        if not VISIBILITY_TIMEOUT_S.holds(each.visibility_timeout_s):
            raise TableError(
                f"The visibility_timeout_s of the class {each.name!r} must be {VISIBILITY_TIMEOUT_S.minimum} to "
                f"{VISIBILITY_TIMEOUT_S.maximum}."
            )
    if timeouts_s != sorted(timeouts_s):
        raise TableError("The classes must be in rising order of their visibility_timeout_s.")
    for what, index in (("default", table.default), *((f"class of {key!r}", at) for key, at in table.keys.items())):
        if not 0 <= index < len(timeouts_s):
            raise TableError(f"The {what} is {index}, and the classes are 0 to {len(timeouts_s) - 1}.")
    return table


_decode = msgspec.json.Decoder(RoutingTable).decode
