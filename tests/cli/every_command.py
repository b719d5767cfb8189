"""Find every command of the application."""

from collections.abc import Iterator

from cyclopts import App

from veilmq.cli.app import build


def every_command() -> Iterator[tuple[str, App]]:
    """Yield the words, such as "queue create", and the application of each command."""
    yield from _below(build(), "")


def options(app: App) -> set[str]:
    """Return the long options of a command, without those of every command."""
    return {
        name
        for argument in app.assemble_argument_collection()
        for name in argument.names
        if name.startswith("--") and argument.show
    }


def _below(app: App, words: str) -> Iterator[tuple[str, App]]:
    for name in app:
        if name.startswith("-"):
            continue
        child = app[name]
        path = f"{words} {name}".strip()
        if child.default_command is None:
            yield from _below(child, path)
        else:
            yield path, child
