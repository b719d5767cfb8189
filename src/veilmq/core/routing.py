"""Routing keys: what kind of work a message is, as its sender said, and which visibility timeout that deserves."""

import msgspec

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
