"""Receipts of the store that this one was copied from.

They name a message by its position there. Where that could not become its seq, ``renumbered`` has both, as long as a
receipt can be of use, and the book of such a store reads receipts as if they named the seq.
"""

from collections.abc import Callable
from typing import Any

from veilmq.core.receipts import Receipt, ReceiptBook
from veilmq.store.sqlite.statements import SQL


def book_of(execute: Callable[..., Any], *, key: bytes) -> ReceiptBook:
    """Return the book of a store; ``execute`` is that of its connection."""
    is_copy = execute(SQL["any_renumbered"]).fetchone() is not None
    return _RenumberingBook(execute, key=key) if is_copy else ReceiptBook(keys=[key])


class _RenumberingBook(ReceiptBook):
    """A book that reads receipts of another store, too."""

    __slots__ = ("_execute",)

    def __init__(self, execute: Callable[..., Any], *, key: bytes) -> None:
        super().__init__(keys=[key])
        self._execute = execute

    def read(self, text: str) -> Receipt:
        """Return what ``text`` says, of the seq that its message has here; raises ``ReceiptInvalid``."""
        receipt = super().read(text)
        row = self._execute(SQL["renumbered"], (receipt.queue, receipt.position)).fetchone()
        return receipt if row is None else receipt._replace(position=row[0])
