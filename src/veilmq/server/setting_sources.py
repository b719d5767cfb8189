"""Where settings come from: flags, then the environment, then a file, then the defaults.

Every source is read completely and checked, also the parts that a stronger source overrides: a misspelt or
out-of-range setting is an error wherever it stands, and the error names its source. Raw values keep their origin until
the settings are built, so that an error between two settings can name it too.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veilmq.server.setting_kinds import SettingValue
from veilmq.server.setting_kubernetes import REMEDY, is_link, is_of_service
from veilmq.server.settings import (
    ENVIRONMENT_PREFIX,
    MEMORY,
    ONE_STORE,
    SETTINGS,
    ServerSettings,
    Setting,
    SettingError,
)

FILE_NAME = "veilmq.toml"
"""Read from the working directory when no file is named, if it is there."""

FILE_VARIABLE = "VEILMQ_CONFIG"
"""Names the settings file."""

VARIABLES_OF_OTHERS = frozenset({FILE_VARIABLE, "VEILMQ_ENDPOINT"})
"""Variables with our prefix that are no settings: the file's name, and that of the client commands."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value that was read, and the words that say where it stood."""

    value: SettingValue
    origin: str


def resolve(*, flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None = None) -> ServerSettings:
    """Return the settings that hold; raises ``SettingError``.

    ``flags`` maps names of settings to raw values (flags that were not used are absent); ``file`` is the file that a
    flag named, ``None`` for the one that the environment names, or ``veilmq.toml`` where that exists.
    """
    given = _from_file(file, environment) | _from_environment(environment) | _from_flags(flags)
    try:
        return ServerSettings(**_values(given))
    except SettingError as error:
        origin = given[error.name].origin if error.name in given else "default"
        raise SettingError(error.name, value=error.value, origin=origin, problem=error.problem) from None


def _values(given: Mapping[str, Given]) -> dict[str, Any]:
    return {name: one.value for name, one in given.items()}


def _from_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    return _read({row.name: (flags[row.name], f"flag {row.flag}") for row in SETTINGS if row.name in flags})


def _from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    ours = {name for name in environment if name.startswith(ENVIRONMENT_PREFIX)} - VARIABLES_OF_OTHERS
    known = {row.variable: row for row in SETTINGS}
    ours = {name for name in ours if name in known or not is_of_service(name, environment[name])}
    _refuse_unknown(ours, known=known, origin="environment")
    _refuse_links(ours, environment=environment, known=known)
    return _read({known[name].name: (environment[name], f"environment variable {name}") for name in ours})


def _refuse_links(names: Iterable[str], *, environment: Mapping[str, str], known: Mapping[str, Setting]) -> None:
    for name in sorted(names):
        if is_link(environment[name]):
            origin = f"environment variable {name}"
            raise SettingError(known[name].name, value=environment[name], origin=origin, problem=REMEDY)


def _from_file(named: Path | None, environment: Mapping[str, str]) -> dict[str, Given]:
    path = _find_file(named, environment)
    if path is None:
        return {}
    found = _parse(path)
    _refuse_unknown(found, known=[row.name for row in SETTINGS], origin=f"file {path}")
    return _read({name: (value, f"file {path}") for name, value in found.items()})


def _find_file(named: Path | None, environment: Mapping[str, str]) -> Path | None:
    if named is not None:
        return named
    if FILE_VARIABLE in environment:
        return Path(environment[FILE_VARIABLE])
    usual = Path(FILE_NAME)
    return usual if usual.exists() else None


def _parse(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError("config", value=path, problem=f"cannot be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise SettingError("config", value=path, problem=f"is not a TOML file: {error}") from None


def _refuse_unknown(names: Iterable[str], *, known: Iterable[str], origin: str) -> None:
    known = list(known)
    for name in sorted(set(names) - set(known)):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
        raise SettingError(name, origin=origin, problem=f"unknown setting; {hint}")


def _read(raw: Mapping[str, tuple[object, str]]) -> dict[str, Given]:
    """Read one source; what it says of the place of messages takes the place of all that weaker sources say of it."""
    given = {row.name: _read_one(row, *raw[row.name]) for row in SETTINGS if row.name in raw}
    if MEMORY.name in given and not given[MEMORY.name].value:
        del given[MEMORY.name]
    places = [name for name in ("data", MEMORY.name, "store") if name in given]
    if len(places) > 1:
        name, other = places[:2]
        problem = f"{other} is given too; give {ONE_STORE}"
        raise SettingError(name, value=given[name].value, origin=given[name].origin, problem=problem)
    for name in places:
        origin = given[name].origin
        given = {"data": Given(None, origin), "store": Given(None, origin)} | given
    given.pop(MEMORY.name, None)
    return given


def _read_one(row: Setting, value: object, origin: str) -> Given:
    try:
        return Given(row.kind.read(value), origin)
    except ValueError:
        problem = f"must be {row.kind.allowed}"
        raise SettingError(row.name, value=value, origin=origin, problem=problem) from None
