"""The page of the live view shows what there is to see: its picture is drawn, its fields are those of a look."""

import io
import re

from rich.console import Console

from tests.tidy.tree import ROOT
from veilmq.cli.top_look import Look, QueueRow
from veilmq.cli.top_view import view
from veilmq.consumer.status import HandlerStatus, LeaseStatus, WorkerStatus

TEXT = (ROOT / "docs" / "top.md").read_text(encoding="utf-8")


def worker(pid: int, handler: HandlerStatus, lease: LeaseStatus) -> WorkerStatus:
    """Return a worker with one lease."""
    return WorkerStatus(
        worker=f"studio:{pid}", host="studio", pid=pid, stopping=False, handlers=[handler], leases=[lease]
    )


def handling(queue: str, name: str, events: dict[str, int]) -> HandlerStatus:
    """Return a handler with one message."""
    return HandlerStatus(queue=queue, handler=name, leased=1, running=1, buffered=0, events=events)


def holding(queue: str, message_id: str, held_s: float, left_s: float) -> LeaseStatus:
    """Return a lease."""
    return LeaseStatus(
        queue=queue,
        handler="",
        message_id=message_id,
        attempt=1,
        state="held",
        left_s=left_s,
        held_s=held_s,
        running=True,
        renewals=0,
    )


LOOK = Look(
    endpoint="http://127.0.0.1:9324",
    at_ms=1_769_850_000_000,
    queues=[
        QueueRow(queue="films", visible=812, in_flight=3, delayed=0, oldest_s=760.0, redeliveries=7),
        QueueRow(queue="orders", visible=0, in_flight=1, delayed=0, oldest_s=0.4, redeliveries=0),
    ],
    queues_in_all=2,
    workers=[
        worker(
            4711,
            handling("films", "render", {"acked": 190}),
            holding("films", "0b1d7c8e-1f6f-4c0b-bb1e-0f9c1f1f7d52", 245.0, 71.3),
        ),
        worker(
            4712,
            handling("orders", "ship", {"acked": 88_210}),
            holding("orders", "5f0c5f5e-9ad0-4b9e-8e6c-1c8a1f0f2a11", 0.2, 29.8),
        ),
    ],
    silent=[],
)


def test_the_picture_is_what_is_drawn() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None, legacy_windows=False)
    console.print(view(LOOK, width=80))
    file = console.file
    assert isinstance(file, io.StringIO)
    drawn = "\n".join(line.rstrip() for line in file.getvalue().splitlines())
    assert f"```console\n$ veilmq top\n{drawn}\n```" in TEXT, drawn


def test_every_field_of_a_look_is_named() -> None:
    table = TEXT.partition("## For machines")[2]
    for fields in (Look, QueueRow, WorkerStatus, HandlerStatus, LeaseStatus):
        for name in fields.__struct_fields__:
            assert re.search(rf"`{name}`", table), name
