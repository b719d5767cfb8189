"""Every command that the application has, found by walking it."""

from collections.abc import Iterator

from cyclopts import App

from veilmq.cli.app import build


def every_command() -> Iterator[tuple[str, App]]:
    """Yield (words, application) of each command that does something, such as "queue create"."""
    yield from _below(build(), "")


def options(app: App) -> set[str]:
    """Return the long options of one command, without those that every command has."""
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
