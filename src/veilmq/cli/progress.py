"""How far a long command is: a bar where somebody looks at a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

Report = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


@contextmanager
def progress(what: str, *, unit: str) -> Iterator[Report]:
    """Show a bar on standard error for a while; ``what`` is done to so many ``unit``."""
    columns = (
        TextColumn(f"{what} {{task.completed:,.0f}} of {{task.total:,.0f}} {unit}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(what, total=0)

        def report(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        yield report
