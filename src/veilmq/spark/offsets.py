"""Offsets of the stream, which Spark keeps in its checkpoint: a source and the number of its last claim.

Which messages a number means was fixed at the server before Spark wrote it down.
"""

from dataclasses import dataclass
from typing import Any, Self

from veilmq.spark.source_options import CLAIMS, SQS

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
    def of(cls, json: dict[str, Any], *, mode: str = CLAIMS) -> Self:
        """Read what ``json`` made, for a stream of ``mode``; raises ``OffsetUnknown``."""
        source, number, first = json.get("src"), json.get("n"), json.get("first")
        if json.get("v") != VERSION or type(source) is not str or type(number) is not int:
            raise OffsetUnknown(f"the checkpoint has {json!r}, which is no offset of veilmq's version {VERSION}")
        kept = SQS if source == SQS else CLAIMS
        if source and kept != mode:
            raise OffsetUnknown(f"the checkpoint is of a stream with mode={kept}; go on with that, or begin a new one")
        return cls(source=source, number=number, first=first)

    def json(self) -> dict[str, Any]:
        """Return it as a dictionary of plain values; always the same for the same offset."""
        json: dict[str, Any] = {"v": VERSION, "src": self.source, "n": self.number}
        return json if self.first is None else {**json, "first": self.first}

    def claims_to(self, end: "Offset") -> range:
        """Return the numbers of the claims in the batch from here to ``end``."""
        first = self.number + 1 if end.first is None else end.first
        return range(first, end.number + 1)


INITIAL = Offset()
