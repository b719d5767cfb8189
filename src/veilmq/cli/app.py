"""The table of commands, and the one place where their failures become exit codes.

A command is a function; its arguments and options are its parameters. It answers an exit code or nothing, prints its
answer, and raises when it fails.
"""

import os
import re
import sys
from collections.abc import Sequence
from functools import cache

from cyclopts import App, CycloptsError, UnknownOptionError

from veilmq import __version__
from veilmq.cli.apply import apply
from veilmq.cli.claims import close, evict, list_sources, release
from veilmq.cli.command import CommandFailed, UsageError
from veilmq.cli.messages import receive, send
from veilmq.cli.pipeline import archive, demo, replay, report, route, route_table, tune
from veilmq.cli.queue import (
    cancel_redrive,
    create,
    delete,
    list_queues,
    purge,
    redrive,
    redrives,
    set_queue,
    show,
    tag_queue,
)
from veilmq.cli.store import add, backup, copy, doctor, flush, list_databases, migrate, remove, serve, trust
from veilmq.cli.top import top
from veilmq.cli.worker import forward, worker
from veilmq.client import ClientError, Unreachable
from veilmq.client.transport import UNEXPECTED_REPLY

DONE = 0
FAILED = 1
ASKED_WRONGLY = 2
INTERRUPTED = 130
READER_GONE = 141

_UNDECODED = re.compile("[\ud800-\udfff]")
_NEGATED = "Unknown option: --no-"

_REMEDIES = {
    "QueueDoesNotExist": "`veilmq queue list` names those that do; `veilmq queue create` makes one.",
    "QueueNameExists": "`veilmq queue show` tells its settings, `veilmq queue set` changes them.",
    "SourceNotFound": "`veilmq claims list` names those that there are.",
    UNEXPECTED_REPLY: "Name the endpoint of a queue server with --endpoint.",
}


@cache
def build() -> App:
    """Return the application, made once: every command under its name."""
    app = App(
        name="veilmq",
        help="A message queue whose received messages become invisible, not gone.",
        help_format="plaintext",
        version=f"veilmq {__version__}",
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )
    app.command(serve)
    app.command(_queue())
    app.command(apply)
    app.command(_clock())
    app.command(_events())
    app.command(send)
    app.command(receive)
    app.command(forward)
    app.command(worker)
    app.command(top)
    app.command(_pipeline())
    app.command(demo)
    app.command(_claims())
    app.command(_database())
    app.command(doctor)
    app.command(migrate)
    app.command(backup)
    app.command(copy)
    return app


def _queue() -> App:
    queue = App(name="queue", help="Create, list, show, set, tag, redrive, purge or delete queues.")
    queue.command(create)
    queue.command(list_queues, name="list")
    queue.command(show)
    queue.command(set_queue, name="set")
    queue.command(tag_queue, name="tag")
    queue.command(redrive)
    queue.command(redrives)
    queue.command(cancel_redrive)
    queue.command(purge)
    queue.command(delete)
    return queue


def _claims() -> App:
    claims = App(name="claims", help="List, release or evict what readers of a queue have claimed.")
    claims.command(list_sources, name="list")
    claims.command(release)
    claims.command(evict)
    claims.command(close)
    return claims


def _database() -> App:
    database = App(name="database", help="Add, remove or list the databases of a store on PostgreSQL.")
    database.command(add)
    database.command(remove)
    database.command(list_databases, name="list")
    return database


def _clock() -> App:
    clock = App(name="clock", help="The clock of a store.")
    clock.command(trust)
    return clock


def _events() -> App:
    events = App(name="events", help="The event log.")
    events.command(flush)
    return events


def _pipeline() -> App:
    pipeline = App(name="pipeline", help="Jobs on Spark: archive, replay and route messages, learn from them.")
    for each in (archive, replay, tune, route_table, route, report):
        pipeline.command(each)
    return pipeline


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that ``arguments`` (default: those of the process) name, and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _check_text(given)
        code = build()(given)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except (CycloptsError, UsageError) as error:
        return _fail(ASKED_WRONGLY, _sentence(error))
    except (CommandFailed, ClientError, Unreachable) as error:
        return _fail(FAILED, _sentence(error))
    return code if isinstance(code, int) else DONE


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that the interpreter could not decode, which it hands over as halves of surrogate pairs."""
    for argument in arguments:
        if not argument.isascii() and _UNDECODED.search(argument):
            encoding = sys.getfilesystemencoding()
            raise UsageError(f"The argument {argument!a} is not text in the encoding of this locale ({encoding}).")


def _sentence(error: Exception) -> str:
    """Return what ``error`` says, and what to do about it, on one line."""
    if isinstance(error, CycloptsError):
        error.verbose = False  # where in our code an option is defined helps nobody who mistyped it
    text = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError) and text.startswith(_NEGATED):
        text, _, _ = text.partition(" Did you mean")  # the nearest name to --no-memory means its opposite
        text += " A switch is off unless it is given."
    if isinstance(error, Unreachable):
        text += " Start a server with `veilmq serve`, or name another with --endpoint."
    if isinstance(error, ClientError):
        text = f"{text} ({error.code}) {_REMEDIES.get(error.code, '')}".rstrip()
    return text


def _fail(code: int, sentence: str) -> int:
    print(f"veilmq: {sentence}", file=sys.stderr)
    return code


def _reader_gone() -> int:
    """Give standard output another end, so that the interpreter's last flush has nothing to complain about."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_GONE
