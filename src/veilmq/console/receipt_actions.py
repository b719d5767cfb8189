"""What receipts allow: to extend leases, to end them, to delete messages or move them; and what became of each.

A receipt may have ended when somebody presses a button: the timeout has passed, the message was received again, or it
is gone. That is an answer like any other, and one of ``OUTCOMES``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from veilmq.console.asking import Refused
from veilmq.console.fields import Unfit
from veilmq.console.visit import Visit
from veilmq.core.limits import LEASE_S_MAX, SQS_BATCH_ENTRIES_MAX

OUTCOMES: dict[str, str] = {
    "received": "Received",
    "extended": "Extended",
    "released": "Released",
    "deleted": "Deleted",
    "moved": "Moved",
    "duplicate": "Deleted here, as the other queue has had it already",
    "wall": f"Not extended, as it would be held for more than {LEASE_S_MAX:,} seconds since its receive",
    "long": "Not moved, as it is too long for the other queue",
    "held": "Not moved, as an earlier message of its group was not",
    "expired": "Nothing was done, as its timeout had ended meanwhile",
    "superseded": "Nothing was done, as somebody else has received it meanwhile",
    "earlier": "Done, although somebody else has received it meanwhile",
    "ended": "Nothing was done, as its timeout had ended or somebody else has received it meanwhile",
    "gone": "Nothing was done, as it is no longer in the queue",
    "invalid": "Nothing was done, as the receipt is not one of this queue",
}
"""What may become of a message, and the words for it, before a count of messages."""

_COUNT_MAX = 1_000
_OF_CODES = {
    "MessageTooLong": "long",
    "GroupHeld": "held",
    "ReceiptInvalid": "invalid",
    "ReceiptHandleIsInvalid": "invalid",
}
_OF_WORDS = (  # where one code of SQS has several meanings
    ("beyond the limit", "wall"),
    ("handle has expired", "ended"),
    ("not available for visibility timeout change", "gone"),
)


async def hide(visit: Visit, receipts: Sequence[str], timeout_s: int) -> list[str]:
    """Hide messages for so many seconds from now, 0 to release them. Answers an outcome each; raises ``Refused``."""
    fields = {"VisibilityTimeout": timeout_s}
    done = "extended" if timeout_s else "released"
    return await _each(visit, "ChangeMessageVisibilityBatch", receipts, fields, done=done)


async def delete(visit: Visit, receipts: Sequence[str]) -> list[str]:
    """Delete messages. Answers an outcome each; raises ``Refused``."""
    return await _each(visit, "DeleteMessageBatch", receipts, {}, done="deleted")


async def move(visit: Visit, receipts: Sequence[str], target: str) -> list[str]:
    """Move messages to another queue, each in one transaction. Answers an outcome each.

    Raises ``Unfit`` where they cannot go to ``target``, and ``Refused``.
    """
    outcomes: list[str] = []
    for some in _batches(receipts):
        fields = {"entries": [{"receipt": receipt, "target": target} for receipt in some]}
        told = await visit.api("POST", f"/v1/queues/{quote(visit.queue, safe='/@')}/forward", fields=fields)
        outcomes += [_moved(entry) for entry in told["entries"]]
    return outcomes


def told(outcomes: Sequence[str]) -> str:
    """Return how often each outcome was, as an address has it."""
    return ".".join(f"{outcome}-{count}" for outcome, count in Counter(outcomes).items())


def sentences(text: str) -> Iterator[str]:
    """Yield what ``told`` has said, in words; what it cannot have said is passed over."""
    for part in text.split("."):
        outcome, _, count = part.partition("-")
        if outcome in OUTCOMES and count.isascii() and count.isdigit() and len(count) < len(str(_COUNT_MAX)):
            yield f"{OUTCOMES[outcome]}: {count}."


def _batches(receipts: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(receipts), SQS_BATCH_ENTRIES_MAX):
        yield receipts[at : at + SQS_BATCH_ENTRIES_MAX]


def _moved(entry: Mapping[str, Any]) -> str:
    code = entry.get("code")
    if code is None:
        return "duplicate" if entry["duplicate"] else "moved"
    if code == "ReceiptEnded":
        return str(entry["state"])
    if code in {"QueueNotFound", "DestinationRefused"}:
        raise Unfit(entry["message"])
    return _outcome(code, entry["message"], entry["status"])


async def _each(
    visit: Visit, action: str, receipts: Sequence[str], fields: Mapping[str, Any], *, done: str
) -> list[str]:
    """Return what became of each: batches tell more than the actions on one message do."""
    outcomes: list[str] = []
    for some in _batches(receipts):
        entries = [{"Id": str(place), "ReceiptHandle": receipt, **fields} for place, receipt in enumerate(some)]
        answer = await visit.sqs(action, {"QueueUrl": visit.queue_url, "Entries": entries})
        outcomes += [entry.get("VeilmqReceipt", done) for entry in answer.get("Successful", ())]
        outcomes += [_outcome(failed["Code"], failed["Message"], 503) for failed in answer.get("Failed", ())]
    return outcomes


def _outcome(code: str, message: str, status: int) -> str:
    known = _OF_CODES.get(code) or next((outcome for words, outcome in _OF_WORDS if words in message), None)
    if known is None:
        raise Refused(code, message, status)
    return known
