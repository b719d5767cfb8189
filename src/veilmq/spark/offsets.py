"""Offsets of the stream, which Spark keeps in its checkpoint: a source and the number of its last claim.

Which messages a number means was fixed at the server before Spark wrote it down.
"""

from dataclasses import dataclass
from typing import Any, Self

VERSION = 1


class OffsetUnknown(ValueError):
    """The checkpoint is not of this version of the source, or not of this source at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Claims of ``source`` up to ``number``; a batch that ends here begins with ``first``, if that is not the next."""

    source: str = ""
    number: int = 0
    first: int | None = None

    @classmethod
    def of(cls, json: dict[str, Any]) -> Self:
        """Read what ``json`` made; raises ``OffsetUnknown``."""
        if json.get("v") != VERSION:
            raise OffsetUnknown(f"the checkpoint has {json!r}, which is no offset of veilmq's version {VERSION}")
        return cls(source=json["src"], number=json["n"], first=json.get("first"))

    def json(self) -> dict[str, Any]:
        """Return it as a dictionary of plain values; always the same for the same offset."""
        json: dict[str, Any] = {"v": VERSION, "src": self.source, "n": self.number}
        return json if self.first is None else {**json, "first": self.first}

    def claims_to(self, end: "Offset") -> range:
        """Return the numbers of the claims in the batch from here to ``end``."""
        first = self.number + 1 if end.first is None else end.first
        return range(first, end.number + 1)


INITIAL = Offset()
