"""A store without an event loop: the state machine and its journal, driven a batch at a time by a test's own clock."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest

from veilmq.core.commands import (
    ChangeVisibility,
    Command,
    CreateQueue,
    Delete,
    NewMessage,
    Receive,
    Send,
    VisibilityChange,
)
from veilmq.core.settings import SettingValue
from veilmq.engines.embedded.batch import Batch, Entry
from veilmq.engines.embedded.folder import open_journal
from veilmq.engines.embedded.machine import Machine
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.space import Space

QUEUE = "000000000000/jobs"


class Store:
    """One open store; ``now_ms`` is the test's to move."""

    def __init__(self, folder: Path | None = None, **options: Any) -> None:
        if folder is not None:
            folder.mkdir(exist_ok=True)
        self.options = EngineOptions(**{"purge_pause_s": 0, "queue_name_pause_s": 0, **options})
        self.journal = open_journal(folder, self.options)
        self.space = Space(folder=folder, journal=self.journal, options=self.options)
        self.machine = Machine(journal=self.journal, options=self.options, space=self.space)
        self.batch = Batch(machine=self.machine, journal=self.journal)
        self.now_ms = 1_700_000_000_000
        self.sent = 0

    def run(self, *commands: Command) -> list[Any]:
        """Run the commands, one batch if none fails; return their answers in the order of the commands."""
        answers: dict[int, Any] = {}

        def done_for(index: int) -> Any:
            return lambda answer: answers.__setitem__(index, answer)

        entries: deque[Entry] = deque((command, done_for(index)) for index, command in enumerate(commands))
        while entries:
            if self.batch.run(entries, self.now_ms):
                self.journal.commit()
            self.batch.deliver()
        return [answers[index] for index in range(len(commands))]

    def create(self, name: str = QUEUE, **settings: SettingValue) -> None:
        self.run(CreateQueue(queue=name, settings=settings))

    def send(self, *bodies: str, delay_s: int | None = None, priority: int = 8, queue: str = QUEUE) -> list[Any]:
        messages = tuple(
            NewMessage(body=body, size_bytes=len(body), delay_s=delay_s, priority=priority) for body in bodies
        )
        (answer,) = self.run(Send(queue=queue, messages=messages))
        return answer if isinstance(answer, list) else [answer]

    def send_to(self, groups: str, *, delay_s: int | None = None, queue: str = QUEUE) -> list[Any]:
        """Send a message to each of the groups, named by a letter: bodies are the letter and a number that rises."""
        messages = []
        for group in groups:
            self.sent += 1
            body = f"{group}{self.sent}"
            messages.append(NewMessage(body=body, size_bytes=len(body), group=group, dedup_id=body, delay_s=delay_s))
        (answer,) = self.run(Send(queue=queue, messages=tuple(messages)))
        return answer if isinstance(answer, list) else [answer]

    def receive(self, count: int = 1, timeout_s: int | None = None, queue: str = QUEUE) -> Any:
        (answer,) = self.run(Receive(queue=queue, count=count, timeout_s=timeout_s))
        return answer

    def bodies(self, count: int = 1, timeout_s: int | None = None, queue: str = QUEUE) -> list[str]:
        return [message.body for message in self.receive(count, timeout_s, queue).messages]

    def delete(self, *receipts: str, only_live: bool = False) -> list[Any]:
        (answers,) = self.run(Delete(queue=QUEUE, receipts=receipts, only_live=only_live))
        return list(answers)

    def change(self, receipt: str, timeout_s: int) -> Any:
        (answers,) = self.run(
            ChangeVisibility(queue=QUEUE, changes=(VisibilityChange(receipt=receipt, timeout_s=timeout_s),))
        )
        return answers[0]

    def count(self, table: str) -> int:
        """Count the rows of a table as they are on disk."""
        ((rows,),) = self.journal.begin().execute(f"SELECT count(*) FROM {table}")
        self.journal.roll_back()
        return int(rows)

    def close(self) -> None:
        self.journal.close()


def rows_read(monkeypatch: pytest.MonkeyPatch, store: Store, query: str) -> list[int]:
    """Collect how many rows each run of the named query gives from now on."""
    counts: list[int] = []
    read = store.journal.rows

    def counting(name: str, *values: Any) -> list[Any]:
        rows = read(name, *values)
        if name == query:
            counts.append(len(rows))
        return rows

    monkeypatch.setattr(store.journal, "rows", counting)
    return counts
