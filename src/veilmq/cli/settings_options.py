"""The settings of a server as options of a command, made from the schema.

A setting that is added to ``ServerSettings`` is an option, with its help, by that alone. The options are read as text:
the schema judges them, in the same words as a value from the environment or the file.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from veilmq.cli.failures import UsageError
from veilmq.server.settings import (
    FILE_NAME,
    FILE_VARIABLE,
    SETTINGS,
    STORES,
    SWITCH,
    Kind,
    ServerSettings,
    Setting,
    SettingError,
    resolve,
)

Command = TypeVar("Command", bound=Callable[..., int])

_TYPES: Mapping[Kind, Any] = {SWITCH: bool | None, STORES: list[str] | None}
"""What the words of an option are taken as, where that is not text."""

Config = Annotated[
    Path | None,
    Parameter(
        metavar="FILE", help=f"Settings file; without it {FILE_VARIABLE}, or {FILE_NAME} in the working directory."
    ),
]


def with_settings(command: Command) -> Command:
    """Give ``command``, which takes any keywords, an option for each setting and ``config``."""
    parameters = [*map(_parameter, SETTINGS), _optional("config", Config)]
    signature = inspect.Signature(parameters, return_annotation=int)
    command.__signature__ = signature  # type: ignore[attr-defined]  # what inspect reads instead of the real one
    return command


def read_settings(options: Mapping[str, Any], config: Path | None) -> ServerSettings:
    """Return the settings that ``options``, the environment and the file make; raises ``UsageError``."""
    flags = {
        name: ",".join(value) if isinstance(value, list) else value
        for name, value in options.items()
        if value is not None
    }
    try:
        return resolve(flags=flags, environment=os.environ, file=config)
    except SettingError as error:
        raise UsageError(str(error)) from error


def option_of(name: str) -> Parameter:
    """Return the option that gives the setting ``name``."""
    (row,) = [row for row in SETTINGS if row.name == name]
    return _option(row)


def _parameter(row: Setting) -> inspect.Parameter:
    return _optional(row.name, Annotated[_TYPES.get(row.kind, str | None), _option(row)])


def _option(row: Setting) -> Parameter:
    if row.kind is SWITCH:
        return Parameter(name=row.flag, negative=(), show_default=False, help=row.description)
    return Parameter(
        name=row.flag,
        negative=(),
        metavar=row.kind.placeholder,
        show_default=lambda _: row.default_text,
        help=f"{row.description} Must be {row.kind.allowed}.",
    )


def _optional(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
