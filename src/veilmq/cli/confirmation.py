"""Asking before something is lost."""

import sys

from veilmq.cli.failures import CommandFailed, UsageError


def confirm(question: str, *, yes: bool) -> None:
    """Return if ``yes`` or the person at the terminal says so; raises otherwise.

    Without a terminal nobody can be asked, and silence is no consent: ``--yes`` is needed.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("There is no terminal to ask for confirmation at; add --yes if you are sure.")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was done.")
