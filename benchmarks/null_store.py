"""veilmq on a store that costs next to nothing and keeps nothing: what a request costs without one.

`python -m benchmarks.null_store serve …` answers sends, receives and deletes of one message at once, from a list in
memory; everything else goes to the store that it stands in for. The share of the store in a request follows.
"""

import os
import sys
from collections import deque
from typing import Any

from veilmq.cli import main
from veilmq.core import commands, results
from veilmq.core.results import ReceiptState
from veilmq.store.sqlite import SqliteStore

RECEIPT = "01" + "0" * 76


def answer_at_once() -> None:
    """Have every store answer the hot commands by itself."""
    submit = SqliteStore.submit
    waiting: deque[str] = deque()
    arranged: list[tuple[Any, Any]] = []
    message_id = os.urandom(16)

    def deliver() -> None:
        batch, arranged[:] = arranged[:], []
        for command, done in batch:
            done(answer(command))

    def answer(command: Any) -> Any:
        if type(command) is commands.Send:
            waiting.extend(new.body for new in command.messages)
            return [results.SentMessage(id=message_id) for _ in command.messages]
        if type(command) is commands.Delete:
            return [ReceiptState.LIVE for _ in command.receipts]
        given = [
            results.ReceivedMessage(
                id=message_id,
                receipt=RECEIPT,
                body=waiting.popleft(),
                properties=b"",
                sent_at_ms=1,
                first_received_at_ms=1,
                receive_count=1,
                visible_at_ms=1,
                priority=8,
            )
            for _ in range(min(command.count, len(waiting)))
        ]
        return results.Received(messages=given, next_due_ms=1, receive_wait_s=0)

    def submit_here(self: SqliteStore, command: Any, done: Any) -> None:
        if type(command) in (commands.Send, commands.Receive, commands.Delete):
            arranged.append((command, done))
            if len(arranged) == 1:
                self._loop.call_soon(deliver)
        else:
            submit(self, command, done)

    SqliteStore.submit = submit_here  # type: ignore[method-assign]


if __name__ == "__main__":
    answer_at_once()
    sys.exit(main())
