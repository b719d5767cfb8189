"""Commands that need more than the plain install say which extra has it."""

from collections.abc import Iterator
from contextlib import contextmanager

from veilmq.cli.failures import CommandFailed


@contextmanager
def needs_extra(name: str, *, command: str) -> Iterator[None]:
    """Turn a failing import of a third party's module into a ``CommandFailed`` that names the extra ``name``."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "veilmq":
            raise  # a defect of ours, which no extra repairs
        raise CommandFailed(
            f"veilmq {command} needs the module {error.name}, which the plain install does not have: "
            f"pip install 'veilmq[{name}]'"
        ) from error
