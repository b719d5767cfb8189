"""Servers and their stores: serve, events, clock, database, doctor, migrate, backup and copy."""

import asyncio
import inspect
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
from cyclopts import Parameter

from veilmq.cli.command import CommandFailed, Json, UsageError, needs_extra, print_aligned, print_json, progress
from veilmq.cli.connection import DEFAULT_ADMIN_ENDPOINT, AdminEndpoint, post
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
from veilmq.store.urls import split_urls, without_passwords

Command = TypeVar("Command", bound=Callable[..., int])

_OPTION_TYPES: Mapping[Kind, Any] = {SWITCH: bool | None, STORES: list[str] | None}
"""What the words of an option are taken as, where that is not text."""

Config = Annotated[
    Path | None,
    Parameter(
        metavar="FILE", help=f"Settings file; without it {FILE_VARIABLE}, or {FILE_NAME} in the working directory."
    ),
]


def with_settings(command: Command) -> Command:
    """Give ``command``, which takes any keywords, an option for each setting and ``config``."""
    parameters = [*map(_setting_parameter, SETTINGS), _optional("config", Config)]
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
    return _setting_option(row)


def _setting_parameter(row: Setting) -> inspect.Parameter:
    return _optional(row.name, Annotated[_OPTION_TYPES.get(row.kind, str | None), _setting_option(row)])


def _setting_option(row: Setting) -> Parameter:
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


@with_settings
def serve(*, config: Config = None, **options: Any) -> int:
    """Run a server until it is told to stop.

    Each option is also a variable of the environment (VEILMQ_ADMIN_PORT for
    --admin-port) and a key of the settings file (admin_port). An option beats
    the environment, and that the file.
    """
    settings = read_settings(options, config)
    with needs_extra("server", command="serve"):
        from veilmq.server.app import run
    return run(settings)


_FLUSH_PATH = "/events/flush"
_FLUSHED = 200
_GOES_ON = 202  # the server answers before its connection ends; it takes another request to wait on


def flush(*, admin_endpoint: AdminEndpoint = DEFAULT_ADMIN_ENDPOINT) -> None:
    """Have a server export the whole event log now, and wait for it."""
    answer = post(admin_endpoint, _FLUSH_PATH)
    while answer.status == _GOES_ON:
        answer = post(admin_endpoint, _FLUSH_PATH)
    if answer.status != _FLUSHED:
        raise CommandFailed(answer.data.decode(errors="replace").strip() or f"The server answered {answer.status}.")
    told = answer.json()
    print(f"Exported {told['exported']} events in all; {told['waiting']} wait, {told['dropped']} were dropped.")


_TRUSTED = 200


def trust(*, admin_endpoint: AdminEndpoint = DEFAULT_ADMIN_ENDPOINT) -> None:
    """Have a server take its clock's present time for right.

    What it held back because it doubted the clock is applied. A server with
    accounts wants the key of its own account's root user, in AWS's variables.
    """
    answer = post(admin_endpoint, "/api/clock/trust")
    try:
        message = answer.json()["message"]
    except (ValueError, LookupError, TypeError):
        message = f"{admin_endpoint} is not the admin port of a veilmq server: it answered {answer.status}."
        raise CommandFailed(message) from None
    if answer.status != _TRUSTED:
        raise CommandFailed(message)
    print(message)


def data_folder(data: str | None, config: Path | None) -> Path:
    """Return the folder; raises ``UsageError`` when the settings name none."""
    folder = read_settings({"data": data}, config).data
    if folder is None:
        raise UsageError("The settings name no data folder; name one with --data.")
    return folder


T = TypeVar("T")


class Databases(NamedTuple):
    """The module ``store.postgres``, and the URLs that the settings give, the home's first."""

    parts: Any
    urls: tuple[str, ...]

    def all(self) -> dict[int, str]:
        """Return the URLs of all databases by their places: those that are given, and those that the home knows."""
        known = done(lambda: self.parts.known_urls(self.urls[0]))
        return dict(sorted({**known, **dict(enumerate(self.urls))}.items()))


def databases(settings: ServerSettings, *, command: str) -> Databases:
    """Return the databases of ``settings``, which name some; raises ``CommandFailed`` where the driver is missing."""
    assert settings.store is not None
    with needs_extra("server", command=command):
        from veilmq.server.stores import postgres_parts
        from veilmq.store.port import StoreError
    try:
        return Databases(postgres_parts(f"veilmq {command}"), split_urls(settings.store))
    except StoreError as error:
        raise CommandFailed(str(error)) from error


def done(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what ``work`` returns; raises ``CommandFailed`` where a database cannot be reached or used."""
    from veilmq.store.port import StoreError  # what ``databases`` has found

    try:
        return asyncio.run(work())
    except StoreError as error:
        raise CommandFailed(str(error)) from error


StoreHome = Annotated[list[str] | None, option_of("store")]
DatabaseUrl = Annotated[str, Parameter(help="URL of an empty database, without a password.")]
DatabaseName = Annotated[str, Parameter(help="Number or URL of a database, as `veilmq database list` prints them.")]


def add(url: DatabaseUrl, /, *, store: StoreHome = None, config: Config = None, json: Json = False) -> None:
    """Add an empty database to a store; servers notice it within seconds.

    New queues go where the fewest are. For a database whose address has
    changed, give the new URL.
    """
    parts, home = _home_of(store, config, command="database add")
    try:
        (added,) = split_urls(url)
    except ValueError as error:
        raise UsageError(f"{error} is not the URL of one database (postgresql://…).") from error
    _print_databases([done(lambda: parts.add(home, added))], json=json)


def remove(name: DatabaseName, /, *, store: StoreHome = None, config: Config = None, json: Json = False) -> None:
    """Remove an empty database from a store."""
    parts, home = _home_of(store, config, command="database remove")
    _print_databases([done(lambda: parts.remove(home, name))], json=json)


def list_databases(*, store: StoreHome = None, config: Config = None, json: Json = False) -> None:
    """Print the databases of a store, the home first, with the number of their queues."""
    parts, home = _home_of(store, config, command="database list")
    found = done(lambda: parts.listing(home))
    if json:
        print_json([each._asdict() for each in found])
    else:
        _print_databases(found, json=False)


def _home_of(store: list[str] | None, config: Any, *, command: str) -> tuple[Any, str]:
    settings = read_settings({"store": store}, config)
    if settings.store is None:
        raise UsageError("The settings name no database; name the home of the store with --store.")
    found = databases(settings, command=command)
    return found.parts, found.urls[0]


def _print_databases(found: list[Any], *, json: bool) -> None:
    if json:
        print_json(found[0]._asdict())
        return
    for place, each in enumerate(found):
        if place:
            print()
        shown = [("number", each.number), ("database", each.database)]
        print_aligned([*shown, ("queues", each.queues) if each.error is None else ("error", each.error)])


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the doctor: what should hold, whether it does, and where it does not."""

    check: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Examination:
    """What the doctor says about a ``folder`` or a ``store``, which is what ``kind`` says."""

    kind: str
    place: str
    ok: bool
    facts: Mapping[str, str | int]
    checks: list[Check]


def doctor(
    *,
    data: Annotated[str | None, option_of("data")] = None,
    store: Annotated[list[str] | None, option_of("store")] = None,
    config: Config = None,
    json: Json = False,
) -> int:
    """Check a data folder or a database, also beside running servers; changes nothing.

    It is the one that serve would use with the same settings. Of several
    databases it checks each, and whether they fit together.
    """
    settings = read_settings({"data": data, "store": store}, config)
    if settings.store is None:
        return _tell_one(_folder(data, config), json=json)
    found = databases(settings, command="doctor")
    urls = found.all()
    if len(urls) > 1:
        return _tell_all(*_several(found, urls, settings.durability), json=json)
    return _tell_one(_database(found, found.urls[0], settings.durability), json=json)


def _tell_one(examination: Examination, *, json: bool) -> int:
    if json:
        print_json(_document(examination))
    else:
        _print_examination(examination)
        _print_verdict(examination.checks)
    return 0 if examination.ok else 1


def _tell_all(examinations: list[Examination], together: list[Check], *, json: bool) -> int:
    checks = [check for examination in examinations for check in examination.checks] + together
    ok = all(check.ok for check in checks)
    if json:
        each = [_document(examination) for examination in examinations]
        print_json({"ok": ok, "databases": each, "together": together})
    else:
        for examination in examinations:
            _print_examination(examination)
        print_aligned([("together", f"{len(examinations)} databases")])
        _print_checks(together)
        _print_verdict(checks)
    return 0 if ok else 1


def _document(examination: Examination) -> dict[str, Any]:
    rest = {"ok": examination.ok, "facts": examination.facts, "checks": examination.checks}
    return {examination.kind: examination.place} | rest


def _folder(data: str | None, config: Path | None) -> Examination:
    folder = data_folder(data, config)
    with needs_extra("server", command="doctor"):
        from veilmq.store.sqlite.copying import examine
        from veilmq.store.sqlite.database import FolderError
    try:
        report = examine(folder)
    except FolderError as error:
        raise CommandFailed(str(error)) from error
    return _examined("folder", str(folder), report)


def _database(found: Databases, url: str, durability: str) -> Examination:
    return _examined("store", *done(lambda: found.parts.examination(url, durability=durability)))


def _several(found: Databases, urls: Mapping[int, str], durability: str) -> tuple[list[Examination], list[Check]]:
    """Examine each database, whatever becomes of the others, and all together."""
    examinations = []
    for url in urls.values():
        try:
            examinations.append(_database(found, url, durability))
        except CommandFailed as error:
            fault = Check("it can be examined", ok=False, detail=str(error))
            examinations.append(Examination("store", without_passwords(url), ok=False, facts={}, checks=[fault]))
    return examinations, _checks(done(lambda: found.parts.examine_together(urls)))


def _examined(kind: str, place: str, report: Any) -> Examination:
    checks = _checks(report.findings)
    return Examination(kind, place, all(check.ok for check in checks), report.facts, checks)


def _checks(findings: Iterable[Any]) -> list[Check]:
    return [Check(finding.check, finding.ok, finding.detail) for finding in findings]


def _print_examination(examination: Examination) -> None:
    print_aligned([(examination.kind, examination.place), *examination.facts.items()])
    _print_checks(examination.checks)


def _print_checks(checks: list[Check]) -> None:
    print()
    for check in checks:
        print(f"{'ok    ' if check.ok else 'FAILED'}  {check.check}")
        for line in check.detail.splitlines():
            print(f"        {line}")
    print()


def _print_verdict(checks: list[Check]) -> None:
    failed = sum(not check.ok for check in checks)
    print(f"{failed} of {len(checks)} checks failed." if failed else "Every check is ok.")


CheckOnly = Annotated[
    bool, Parameter(negative=(), help="Change nothing; exit with 1 if there is anything to do.", show_default=False)
]


class Migration(msgspec.Struct, kw_only=True):
    """What was done, or would be; ``format`` is the number of the last upgrade before."""

    store: str
    format: int
    upgrades: list[str]
    applied: bool


class Failure(msgspec.Struct, kw_only=True):
    """A database of several that is as it was, and why."""

    store: str
    error: str


def migrate(
    *,
    store: Annotated[list[str] | None, option_of("store")] = None,
    check: CheckOnly = False,
    config: Config = None,
    json: Json = False,
) -> int:
    """Upgrade the schema of a PostgreSQL database, all of it or nothing.

    Servers do so by themselves when they start, but for upgrades that older
    servers could not go on with: stop those, run this, and start the new ones.
    Of several databases each is upgraded by itself, whatever becomes of the others.
    """
    settings = read_settings({"store": store}, config)
    if settings.store is None:
        raise UsageError("The settings name no database; name one with --store. A data folder upgrades itself.")
    found = databases(settings, command="migrate")
    home = _try_upgrade(found, found.urls[0], check=check)
    others = list(found.all().values())[1:]  # as the home knows them when it is upgraded
    if others:
        return _migrate_others(found, home, others, check=check, json=json)
    if isinstance(home, Failure):
        raise CommandFailed(home.error)
    if json:
        print_json(home)
    else:
        _print_migration(home)
    return 1 if check and home.upgrades else 0


def _migrate_others(found: Databases, home: Migration | Failure, others: list[str], *, check: bool, json: bool) -> int:
    """Go on where one fails, and say so as it comes: an upgrade may take long."""
    told = [home]
    if not json:
        _print_one_of_several(home)
    for url in others:
        told.append(_try_upgrade(found, url, check=check))
        if not json:
            _print_one_of_several(told[-1])
    if json:
        print_json({"databases": told})
    failed = [each.store for each in told if isinstance(each, Failure)]
    if failed:
        raise CommandFailed(
            f"{len(failed)} of {len(told)} databases failed ({', '.join(failed)}); the others are as said. Mend it and "
            "run this again: it does what is left."
        )
    return int(check and any(each.upgrades for each in told if isinstance(each, Migration)))


def _try_upgrade(found: Databases, url: str, *, check: bool) -> Migration | Failure:
    try:
        upgrade = done(lambda: found.parts.upgrade(url, apply=not check))
    except CommandFailed as error:
        return Failure(store=without_passwords(url), error=str(error))
    return Migration(store=upgrade.place, format=upgrade.found, upgrades=upgrade.upgrades, applied=not check)


def _print_one_of_several(told: Migration | Failure) -> None:
    if isinstance(told, Failure):
        print_aligned([("store", told.store), ("FAILED", told.error)])
    else:
        _print_migration(told)
    print(flush=True)


def _print_migration(migration: Migration) -> None:
    rows = [("store", migration.store), ("format", str(migration.format))]
    if migration.upgrades:
        rows.append(("applied" if migration.applied else "to apply", "\n".join(migration.upgrades)))
    print_aligned(rows)
    if not migration.upgrades:
        print("\nThe schema has all that this version needs.")


NoStore = Annotated[list[str] | None, Parameter(name="--store", show=False)]
"""Not to be had, but asked for by whoever gives all commands what he gives serve: he is told what to do."""

BackupPath = Annotated[
    Path, Parameter(metavar="PATH", help="What to write: a new folder, or a new file that ends in .db.")
]


def backup(
    *,
    to: BackupPath,
    data: Annotated[str | None, option_of("data")] = None,
    store: NoStore = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Copy a data folder, also beside a running server, and check the copy.

    BackupPath restore it, start a server on it: veilmq serve --data PATH.
    """
    if read_settings({"data": data, "store": store}, config).store is not None:
        raise UsageError(
            "A store on PostgreSQL is backed up with PostgreSQL's own means (snapshots, pg_basebackup, pg_dump), all "
            "its databases at one time; name a data folder with --data, or copy a stopped store with veilmq copy."
        )
    with needs_extra("server", command="backup"):
        from veilmq.store.sqlite.copying import back_up
        from veilmq.store.sqlite.database import FolderError
    folder = data_folder(data, config)
    try:
        with progress("copied", unit="pages") as report:
            facts = back_up(folder, to, progress=report)
    except FolderError as error:
        raise CommandFailed(str(error)) from error
    if json:
        print_json({"path": str(to), "database_bytes": facts["database_bytes"], "facts": facts})
    else:
        print_aligned([("backup", to), *facts.items()])


CopyFrom = Annotated[
    str, Parameter(name="--from", metavar="STORE", help="What to copy: a data folder, or postgresql://… of a database.")
]
CopyTo = Annotated[
    str, Parameter(name="--to", metavar="STORE", help="Where to: a folder that is not there yet, or an empty database.")
]


def copy(*, source: CopyFrom, to: CopyTo, json: Json = False) -> None:
    """Copy a stopped store to another one, of the same kind or of the other.

    All of it or nothing; the source stays as it is.
    """
    with needs_extra("server", command="copy"):
        from veilmq.server.stores import copy_store
        from veilmq.store.clock import SystemClock
        from veilmq.store.copying import CopyRefused
        from veilmq.store.port import StoreError
    try:
        with progress("copied", unit="messages") as report:
            messages = asyncio.run(copy_store(source, to, clock=SystemClock(), progress=report))
    except (CopyRefused, StoreError) as error:
        raise CommandFailed(str(error)) from error
    if json:
        print_json({"messages": messages})
    else:
        print_aligned([("messages", messages)])
