"""The rules of batches, the same for sends, deletes and changes.

A request is refused as a whole when it has no entries, more than ten, or ids that are missing, malformed or not
distinct. Beyond that each entry succeeds or fails alone: one that breaks a rule of the wire never reaches the engine
and is listed under ``Failed`` beside those that the engine refused.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX, SQS_BATCH_ENTRY_ID_CHARACTERS_MAX
from veilmq.wire.sqs.errors import (
    EMPTY_BATCH_REQUEST,
    ENTRY_IDS_NOT_DISTINCT,
    INVALID_ENTRY_ID,
    SqsError,
    missing_parameter,
    too_many_entries,
)
from veilmq.wire.sqs.plan import answered
from veilmq.wire.sqs.responses import BatchResult, BatchResultErrorEntry

_ID = re.compile(rf"[A-Za-z0-9_-]{{1,{SQS_BATCH_ENTRY_ID_CHARACTERS_MAX}}}")


class Entry(Protocol):
    """What every batch entry has."""

    @property
    def id(self) -> str | None:
        """Return the name that the client gave the entry."""


E = TypeVar("E", bound=Entry)
P = TypeVar("P")


class Batch(Generic[E, P]):
    """The entries of one request: those that go to the engine, prepared, and those that failed here."""

    __slots__ = ("failed", "prepared")

    def __init__(self, entries: Sequence[E] | None, kind: str, prepare: Callable[[E], P]) -> None:
        """Check the ids and prepare each entry; ``kind`` is what the service model calls an entry.

        Raises ``SqsError`` where the whole request is wrong; ``prepare`` raises it for its entry alone.
        """
        self.prepared: list[tuple[str, P]] = []
        self.failed: list[BatchResultErrorEntry] = []
        for identifier, entry in _identified(entries, kind):
            try:
                self.prepared.append((identifier, prepare(entry)))
            except SqsError as error:
                self.failed.append(_failure(identifier, error))

    def respond(self, results: Any, success: Callable[[str, P, Any], Any]) -> BatchResult:
        """Return the response; ``results`` has an outcome for each prepared entry, in their order.

        ``success`` makes the answer from an entry's id, what was prepared and its outcome, and raises ``SqsError``
        for an outcome that is an error.
        """
        successful = []
        failed = list(self.failed)
        for (identifier, prepared), outcome in zip(self.prepared, answered(results), strict=True):
            try:
                successful.append(success(identifier, prepared, outcome))
            except SqsError as error:
                failed.append(_failure(identifier, error))
        return BatchResult(successful=successful or None, failed=failed or None)


def _identified(entries: Sequence[E] | None, kind: str) -> list[tuple[str, E]]:
    if entries is None:
        raise missing_parameter("Entries")
    if not entries:
        raise SqsError(EMPTY_BATCH_REQUEST, f"There should be at least one {kind} in the request.")
    if len(entries) > SQS_BATCH_ENTRIES_MAX:
        raise too_many_entries(len(entries))
    known: set[str] = set()
    return [(_checked_id(entry.id, place, kind, known), entry) for place, entry in enumerate(entries, start=1)]


def _checked_id(identifier: str | None, place: int, kind: str, known: set[str]) -> str:
    if identifier is None:
        raise missing_parameter(f"{kind}.{place}.Id")
    if not _ID.fullmatch(identifier):
        raise SqsError(
            INVALID_ENTRY_ID,
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
            f"It can be at most {SQS_BATCH_ENTRY_ID_CHARACTERS_MAX} letters long.",
        )
    if identifier in known:
        raise SqsError(ENTRY_IDS_NOT_DISTINCT, f"Id {identifier} repeated.")
    known.add(identifier)
    return identifier


def _failure(identifier: str, error: SqsError) -> BatchResultErrorEntry:
    code = error.code
    return BatchResultErrorEntry(
        id=identifier, sender_fault=code.fault == "Sender", code=code.query, message=error.message
    )
