"""How the commands that run for long log: lines for people, or one JSON object on each line for machines."""

import logging
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from veilmq.cli.failures import UsageError

LogLevel = Annotated[
    str, Parameter(name="--log", metavar="LEVEL", help="How much to log: debug, info, warning, error.")
]
LogFormat = Annotated[
    str, Parameter(name="--log-format", metavar="FORMAT", help="How to log: text, or json for machines.")
]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One object for each record: when, how serious, whose, what, and whatever else the record was given."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


_FORMATTERS = {
    "text": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": JsonLines(),
}


def log_as(level: str, form: str) -> None:
    """Log to standard error from ``level`` on, as ``form`` says; raises ``UsageError``."""
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise UsageError(f"--log: {level!r} is no level; use debug, info, warning or error.")
    if form not in _FORMATTERS:
        raise UsageError(f"--log-format: {form!r} is none; use {' or '.join(_FORMATTERS)}.")
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[form])
    logging.basicConfig(level=number, handlers=[handler])
