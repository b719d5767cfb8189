"""The table in the terminal: one row per figure, one column per server, and below it why a cell is empty."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.row import NOT_PEERS, REASONS, SUBJECT, Row, Section

WIDTH = 170
KEPT = "kept after kill -9"


def columns(sections: Sequence[Section]) -> list[str]:
    """Return the servers of the rows: ceiling, own class and veilmq first, then the peers in order of rows."""
    seen: dict[str, None] = {}
    for section in sections:
        for row in section.rows:
            seen.update(dict.fromkeys(row.values))
    return [name for name in NOT_PEERS if name in seen] + [name for name in seen if name not in NOT_PEERS]


def cell(value: float | str | None) -> str:
    """Format a number with suitable precision, or the first words of a reason."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.split(":", 1)[0] if value.startswith(REASONS) else value
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def reasons(sections: Sequence[Section]) -> list[str]:
    """Return the reasons of empty cells, each once."""
    found: dict[str, None] = {}
    for section in sections:
        for row in section.rows:
            for server, value in row.values.items():
                if _reason(value):
                    where = "all" if str(value).startswith("not installed") else row.figure
                    found[f"{server}, {where}: {value}"] = None
    return list(found)


def _reason(value: float | str) -> bool:
    return isinstance(value, str) and value.startswith(REASONS)


def kept(sections: Sequence[Section]) -> Mapping[str, str]:
    """Return what each server keeps after kill -9, if measured."""
    rows = [row for section in sections for row in section.rows if row.figure == KEPT]
    return {name: cell(value) for row in rows for name, value in row.values.items() if not _reason(value)}


def over_peers(row: Row) -> str:
    return " · ".join(f"{ratio:,.0f} × {name}" for name, ratio in row.over_peers().items())


def cells(row: Row, servers: Sequence[str]) -> list[str]:
    """Return the texts of a row: figure, unit, a value per server, share of the ceiling, ratios and note."""
    return [
        row.figure,
        row.unit,
        *(cell(row.values.get(server)) for server in servers),
        cell(row.of_ceiling()),
        "\n".join(text for text in (over_peers(row), row.note) if text),
    ]


def render(sections: Sequence[Section], *, title: str) -> Table:
    servers = columns(sections)
    keeps = kept(sections)
    table = Table(title=escape(title), title_justify="left")
    table.add_column("figure", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for server in servers:
        header = f"{server}\nkeeps {keeps[server]}" if server in keeps else server
        table.add_column(escape(header), justify="right", style="bold" if server == SUBJECT else None)
    table.add_column("of ceiling", justify="right")
    table.add_column("veilmq against peers; notes", overflow="fold", ratio=1)
    for section in sections:
        for texts in _lines(section, servers):
            table.add_row(*map(escape, texts))
        table.add_section()
    return table


def _lines(section: Section, servers: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of a section; a repeated figure is shown once."""
    last = ""
    for row in section.rows:
        figure, *others = cells(row, servers)
        yield ["" if figure == last else figure, *others]
        last = figure


def show(sections: Sequence[Section], *, title: str) -> None:
    """Print the table; in a file or a pipe as plain text of fixed width."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(render(sections, title=title))
    for reason in reasons(sections):
        console.print(reason, markup=False)
