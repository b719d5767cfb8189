"""Progress on the terminal: one line for each stream, on standard error; nothing where that is no terminal."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from veilmq.pipeline.streams import Report


@contextmanager
def showing(totals: Mapping[str, int | None], *, what: str) -> Iterator[Report]:
    """Give what to report progress to; ``totals`` says how much each line is to have, ``None`` where nobody knows."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(what),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        lines = {name: progress.add_task(name, total=total) for name, total in totals.items()}

        def report(name: str, rows: int) -> None:
            progress.update(lines[name], completed=rows)

        yield report
