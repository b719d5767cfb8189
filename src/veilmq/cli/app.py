"""The table of commands, and the mapping of their errors to exit codes.

A command is a function; its parameters are its arguments and options. It prints its result, returns an exit code or
nothing, and raises on failure. Its module is imported when it runs, so `veilmq --help` needs none of them.
"""

import errno
import gc
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from cyclopts import App, ArgumentCollection, CycloptsError, Token, UnknownOptionError

import veilmq
from veilmq.cli.command import CommandFailed, Result, command
from veilmq.cli.options import UsageError, option

COMMANDS = (
    ("serve", "store:serve", "Run a server until it is stopped by SIGTERM or Ctrl-C."),
    ("queue", "queue:app", "Create, list, show, set, tag, redrive, purge or delete queues."),
    ("apply", "queue:apply", "Create or update the queues and topics that a file declares, and print what changes."),
    ("send", "messages:send", "Send a message, and print its id; or send each line of a file as a message."),
    ("receive", "messages:receive", "Receive messages and print them."),
    ("peek", "messages:peek", "Print messages without receiving them."),
    ("forward", "worker:forward", "Forward each message of a queue to the queue that the rules select."),
    ("worker", "worker:worker", "Run the consumer of a module until SIGTERM or SIGINT."),
    ("top", "top:top", "Watch queues, workers, and the leases of their messages."),
    ("pipeline", "pipeline:app", "Run Spark jobs: archive, replay and route messages, recommend timeouts."),
    ("demo", "pipeline:demo", "Run all parts once, and print what they do."),
    ("claims", "queue:claims_app", "List, release or evict what readers of a queue have claimed."),
    ("clock", "store:clock_app", "Confirm the clock of a store."),
    ("events", "store:events_app", "The event log."),
    ("database", "store:database_app", "Add, remove or list the databases of a store on PostgreSQL."),
    ("doctor", "store:doctor", "Check a data folder or a database, and say what to do."),
    ("migrate", "store:migrate", "Upgrade the schema of a PostgreSQL database."),
    ("backup", "store:backup", "Copy a data folder, also beside a running server, and check the copy."),
    ("copy", "store:copy", "Copy a stopped store to another one, of the same kind or of the other."),
    ("--install-completion", "app:install_completion", "Install completion of commands and options for your shell."),
)
"""Name, module and function (or ``App`` of commands), and the line in the list of commands."""

DONE, FAILED, WRONG_USAGE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

_UNDECODED = re.compile("[\ud800-\udfff]")  # surrogates represent bytes that the interpreter could not decode
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NEGATED = "Unknown option: --no-"
_EXTRAS = {
    "server": ("apsw", "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"),
    "spark": ("deltalake", "grpc", "jinja2", "numpy", "pandas", "pyarrow", "pyspark"),
    "reload": ("watchfiles",),
}
"""Third-party modules by the extra that installs them."""

_WRONG_USAGE = {"UsageError", "DeclaredError", "RoutesError", "SettingError", "TableError"}
_WRONG_USAGE |= {"CycloptsError", "ShellDetectionError"}
"""The errors of wrong usage, by name, so that their modules need not be imported."""

_REMEDIES = {
    "QueueDoesNotExist": "`veilmq queue list` prints those that do; `veilmq queue create` creates one.",
    "QueueNameExists": "`veilmq queue show` prints its settings, `veilmq queue set` changes them.",
    "SourceNotFound": "`veilmq claims list` prints the existing ones.",
    "UnexpectedReply": "Name a queue server with --endpoint; if it is behind a proxy, check that it is ready.",
    "Unreachable": "Start a server with `veilmq serve`, or name another with --endpoint.",
    "PlanRefused": "Nothing was changed.",
    "ShellDetectionError": "Name the shell with --shell.",
}
"""The remedy for an error, by its code or its class."""


@cache
def build(running: str = "") -> App:
    """Return the application with all commands.

    The help of the command ``running`` is its docstring; the others have only their lines in the list.
    """
    app = App(
        name="veilmq",
        help="A message queue server that speaks Amazon SQS and Alibaba Cloud SMQ.",
        help_format="plaintext",
        version=lambda: f"veilmq {veilmq.__version__}",
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
        config=_endpoint_of_profile,
    )
    for name, place, line in COMMANDS:
        has_own = name == running and not place.endswith("app")
        app.command(f"veilmq.cli.{place}", name=name, help=None if has_own else line)
    return app


def _endpoint_of_profile(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Call the converter of ``--endpoint`` even if the option is missing: it finds the server's default."""
    for argument in arguments:
        if "--endpoint" in argument.names and not argument.tokens:
            argument.append(Token(keyword="--endpoint", source="profile"))


@command
def install_completion(
    *,
    shell: Literal["bash", "zsh", "fish", "powershell"] | None = option("The shell, if it cannot be detected."),
    output: Path | None = option("Write the script there; do not change the shell's start-up file.", "FILE"),
) -> Result:
    """Install completion of commands and options for your shell."""
    try:
        path = build().install_completion(shell=shell, output=output, add_to_startup=output is None)
    except OSError as error:
        raise CommandFailed(f"{error.filename} cannot be written: {error.strerror}.") from error
    return Result({"path": str(path)}, f"Installed {path}; start a new shell to use it.")


def run(arguments: Sequence[str] | None) -> int:
    """Implement ``main``."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed when the process started
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - until the end of the process
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        for each in filter(_UNDECODED.search, given):
            encoding = sys.getfilesystemencoding()
            raise UsageError(f"The argument {each!a} is not text in the encoding of this locale ({encoding}).")
        function, bound, _ = build(given[0] if given else "").parse_args(given)
        if arguments is None:
            for stream in (sys.stdout, sys.stderr):
                if stream.encoding != "utf-8":  # such a locale cannot encode each message
                    stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
            gc.freeze()  # imported modules stay until the end
            gc.enable()
        code = function(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError):
            _drop_output()
        # Rich, which prints help, raises SystemExit for a closed pipe.
        if isinstance(error.__context__ if isinstance(error, SystemExit) else error, BrokenPipeError):
            return BROKEN_PIPE
        if (failure := _failure(error, given)) is None:
            raise
        code, text = failure
        with suppress(BrokenPipeError):
            print(f"veilmq: {text}", file=sys.stderr)
    return code if isinstance(code, int) else DONE


def _drop_output() -> None:
    """Flush standard output. Drop what cannot be written, because the interpreter's last flush would fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _failure(error: BaseException, given: Sequence[str]) -> tuple[int, str] | None:
    """Return the exit code for ``error`` and a line with the remedy; ``None`` for a defect."""
    if isinstance(error, ModuleNotFoundError):
        if error.name is None:  # raised by veilmq, with what to install
            return FAILED, f"{error}."
        package = error.name.partition(".")[0]
        lacks = f"veilmq {given[0]} needs the module {error.name}, which is not installed: pip install"
        return next(((FAILED, f"{lacks} 'veilmq[{extra}]'") for extra, has in _EXTRAS.items() if package in has), None)
    if isinstance(error, OSError) and error.filename is not None:
        return FAILED, f"{error.filename} cannot be used: {error.strerror}."
    if isinstance(error, OSError) and error.errno in _FULL:
        return FAILED, f"The output cannot be written: {error.strerror}."
    ours = [each.__name__ for each in type(error).__mro__ if each.__module__.startswith(("veilmq.", "cyclopts."))]
    if not ours:
        return None
    if isinstance(error, CycloptsError):
        error.verbose = False  # without the code that defines the option
    text = " ".join(str(error).split())
    if isinstance(error, UnknownOptionError) and text.startswith(_NEGATED):
        text, _, _ = text.partition(" Did you mean")  # the suggestion for --no-memory would be its opposite
        text += " A switch is off unless it is given."
    if code := getattr(error, "code", ""):  # of a ClientError
        text += f" ({code})"
    remedy = _REMEDIES.get(code or ours[0], "")
    return FAILED if _WRONG_USAGE.isdisjoint(ours) else WRONG_USAGE, f"{text} {remedy}".rstrip()
