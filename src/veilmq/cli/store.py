"""Servers and their stores: serve, events, clock, database, doctor, migrate, backup and copy.

The settings of a server are options made from the schema: a setting that is added to ``ServerSettings`` is an option,
with its help, by that alone. The options are read as text: the schema judges them, in the same words as a value from
the environment or the file.

Few of these are clients: what those need is imported by them alone.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from cyclopts import App, Parameter

from veilmq.cli.command import (
    DEFAULT_ADMIN_ENDPOINT,
    AdminEndpoint,
    CommandFailed,
    Json,
    Rows,
    UsageError,
    needs_extra,
    option,
    print_aligned,
    print_json,
    print_result,
    progress,
)
from veilmq.server.settings import (
    FILE_NAME,
    FILE_VARIABLE,
    SETTINGS,
    STORES,
    SWITCH,
    ServerSettings,
    Setting,
    SettingError,
    resolve,
)
from veilmq.store.urls import split_urls, without_passwords

if TYPE_CHECKING:
    from veilmq.server.app import Bound

T = TypeVar("T")

Config = Annotated[
    Path | None,
    option(f"Settings file; without it {FILE_VARIABLE}, or {FILE_NAME} in the working directory.", "FILE"),
]


def _setting_option(row: Setting) -> Parameter:
    if row.kind is SWITCH:
        return option(row.description, name=row.flag)
    return Parameter(
        name=row.flag,
        negative=(),
        metavar=row.kind.placeholder,
        show_default=lambda _: row.default_text,
        help=f"{row.description} Must be {row.kind.allowed}.",
    )


_SETTING_OPTIONS = {row.name: _setting_option(row) for row in SETTINGS}
_TYPES: Mapping[Any, Any] = {SWITCH: bool | None, STORES: list[str] | None}
"""What the words of an option are taken as, where that is not text."""

Data = Annotated[str | None, _SETTING_OPTIONS["data"]]
Store = Annotated[list[str] | None, _SETTING_OPTIONS["store"]]


def _read_settings(config: Path | None, **options: Any) -> ServerSettings:
    """Return the settings that ``options``, the environment and the file make; raises ``UsageError``."""
    given = {name: value for name, value in options.items() if value is not None}
    flags = {name: ",".join(value) if isinstance(value, list) else value for name, value in given.items()}
    try:
        return resolve(flags=flags, environment=os.environ, file=config)
    except SettingError as error:
        raise UsageError(str(error)) from error


def serve(*, config: Config = None, json: Json = False, **options: Any) -> int:
    """Run a server until it is stopped by SIGTERM or Ctrl-C.

    Each option is also a variable of the environment (VEILMQ_ADMIN_PORT for
    --admin-port) and a key of the settings file (admin_port). An option beats
    the environment, and that the file.
    """
    settings = _read_settings(config, **options)
    with needs_extra("server", command="serve"):
        from veilmq.server.app import run
    return run(settings, ready=_print_bound if json else None)


def _print_bound(bound: "Bound") -> None:
    where = {"endpoint": bound.endpoint, "admin_endpoint": bound.admin_endpoint}
    print_json({**where, "kept": bound.engine.kept, "signed": bound.signed})
    sys.stdout.flush()


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what inspect reads instead of the real one
    [
        *(
            _keyword(row.name, Annotated[_TYPES.get(row.kind, str | None), _SETTING_OPTIONS[row.name]])
            for row in SETTINGS
        ),
        _keyword("config", Config),
        _keyword("json", Json, default=False),
    ],
    return_annotation=int,
)


# Data folders and databases: those that ``serve`` would use with the same settings.


def _data_folder(settings: ServerSettings) -> Path:
    if settings.data is None:
        raise UsageError("The settings name no data folder; name one with --data.")
    return settings.data


class Databases(NamedTuple):
    """The module ``store.postgres``, and the URLs that the settings give, the home's first."""

    parts: Any
    urls: tuple[str, ...]

    def all(self) -> dict[int, str]:
        """Return the URLs of all databases by their places: those that are given, and those that the home knows."""
        known = _run(lambda: self.parts.known_urls(self.urls[0]))
        return dict(sorted({**known, **dict(enumerate(self.urls))}.items()))


def _databases(settings: ServerSettings, *, command: str, missing: str = "") -> Databases:
    """Return the databases of ``settings``; raises ``UsageError`` where they name none."""
    if settings.store is None:
        raise UsageError(f"The settings name no database; {missing}")
    with needs_extra("server", command=command):
        from veilmq.server.stores import postgres_parts
        from veilmq.store.port import StoreError
    try:
        return Databases(postgres_parts(f"veilmq {command}"), split_urls(settings.store))
    except StoreError as error:
        raise CommandFailed(str(error)) from error


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what ``work`` returns; raises ``CommandFailed`` where a database cannot be reached or used."""
    from veilmq.store.port import StoreError  # what ``_databases`` has found

    try:
        return asyncio.run(work())
    except StoreError as error:
        raise CommandFailed(str(error)) from error


def add(
    url: Annotated[str, Parameter(help="URL of an empty database, without a password.")],
    /,
    *,
    store: Store = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Add an empty database to a store; servers notice it within seconds.

    New queues go to the database with the fewest. For a database whose address
    has changed, give the new URL.
    """
    parts, home = _home(store, config, command="database add")
    try:
        (added,) = split_urls(url)
    except ValueError as error:
        raise UsageError(f"{error} is not the URL of one database (postgresql://…).") from error
    found = _run(lambda: parts.add(home, added))
    print_result(found._asdict(), [_listed(found)], json=json)


def remove(
    name: Annotated[str, Parameter(help="Number or URL of a database, as `veilmq database list` prints them.")],
    /,
    *,
    store: Store = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Remove an empty database from a store."""
    parts, home = _home(store, config, command="database remove")
    found = _run(lambda: parts.remove(home, name))
    print_result(found._asdict(), [_listed(found)], json=json)


def list_databases(*, store: Store = None, config: Config = None, json: Json = False) -> None:
    """Print the databases of a store, the home first, with the number of their queues."""
    parts, home = _home(store, config, command="database list")
    found = _run(lambda: parts.listing(home))
    print_result([each._asdict() for each in found], map(_listed, found), json=json)


def _home(store: list[str] | None, config: Path | None, *, command: str) -> tuple[Any, str]:
    missing = "name the home of the store with --store."
    found = _databases(_read_settings(config, store=store), command=command, missing=missing)
    return found.parts, found.urls[0]


def _listed(each: Any) -> Rows:
    last = ("queues", each.queues) if each.error is None else ("error", each.error)
    return [("number", each.number), ("database", each.database), last]


def migrate(
    *,
    store: Store = None,
    check: Annotated[bool, option("Change nothing; exit with 1 if there is anything to do.")] = False,
    config: Config = None,
    json: Json = False,
) -> int:
    """Upgrade the schema of a PostgreSQL database, all of it or nothing.

    Servers do so by themselves when they start, except for upgrades that older
    servers cannot work with: stop those, run this, and start the new ones. Of
    several databases each is upgraded by itself, also if others fail.
    """
    missing = "name one with --store. A data folder upgrades itself."
    found = _databases(_read_settings(config, store=store), command="migrate", missing=missing)
    results = [_upgrade(found, found.urls[0], check=check)]
    others = list(found.all().values())[1:]  # as the home knows them when it is upgraded
    if "error" in results[0] and not others:
        raise CommandFailed(results[0]["error"])
    for url in (None, *others):
        if url is not None:
            results.append(_upgrade(found, url, check=check))
        if not json:  # as it comes: an upgrade may take long
            _print_upgrade(results[-1])
            print("\n" * bool(others), end="", flush=True)
    if json:
        print_json({"databases": results} if others else results[0])
    if failed := [each["store"] for each in results if "error" in each]:
        raise CommandFailed(
            f"{len(failed)} of {len(results)} databases failed ({', '.join(failed)}); the others are as printed. "
            "Repair them and run this again: it does what is left."
        )
    return int(check and any(each["upgrades"] for each in results))


def _upgrade(found: Databases, url: str, *, check: bool) -> dict[str, Any]:
    """Upgrade a database, or with ``check`` find what is to do; ``format`` is the number of its last upgrade before."""
    try:
        upgrade = _run(lambda: found.parts.upgrade(url, apply=not check))
    except CommandFailed as error:
        return {"store": without_passwords(url), "error": str(error)}
    return {"store": upgrade.place, "format": upgrade.found, "upgrades": upgrade.upgrades, "applied": not check}


def _print_upgrade(result: Mapping[str, Any]) -> None:
    if "error" in result:
        print_aligned([("store", result["store"]), ("FAILED", result["error"])])
        return
    names = "\n".join(result["upgrades"])
    done = [("applied" if result["applied"] else "to apply", names)] if names else []
    print_aligned([("store", result["store"]), ("format", result["format"]), *done])
    if not names:
        print("\nThe schema has all that this version needs.")


# The doctor.

_DEFECT = (
    "This is a defect of veilmq or of the disk: stop the servers, keep a copy of the store, restore the latest backup "
    "that passes `veilmq doctor`, and report the line above as an issue."
)
_SETTINGS = "then reload the settings: SELECT pg_reload_conf()."
REMEDIES = {
    "the database file is sound": "Stop the server and restore the folder from the latest backup (`veilmq backup`); "
    "check the disk and the memory of the machine.",
    "there is a schema": "Run `veilmq migrate`, or start a server on the database.",
    "the schema has all that this version needs": "Run `veilmq migrate`, or start a server of this version.",
    "the server is of a version that is supported": "Upgrade PostgreSQL to version 15 or newer.",
    "the server is the primary": "Name the primary with --store, or add target_session_attrs=read-write to the URL.",
    "autovacuum is on": f"Run ALTER SYSTEM SET autovacuum = on, {_SETTINGS}",
    "what is acknowledged is durable": f"Change the settings named above, {_SETTINGS} Or accept the risk with "
    "--durability standard.",
    "it can be examined": "Start the database or make it reachable; if its address has changed, run `veilmq database "
    "add` with the new URL.",
    "the databases are one store": "Name the home of this store with --store; `veilmq database list` prints its "
    "databases, `veilmq database add` and `remove` change them.",
    "every queue is in the database that the home names": "Start all servers with the URL of the same home; move the "
    "messages of a misplaced queue, and delete it there.",
}
"""What to do where a check fails; for all others ``_DEFECT``."""


def doctor(*, data: Data = None, store: Store = None, config: Config = None, json: Json = False) -> int:
    """Check a data folder or a database, also beside running servers; changes nothing.

    It is the one that serve would use with the same settings. Of several
    databases it checks each, and whether they fit together. Below each check
    that failed stands what to do.
    """
    settings = _read_settings(config, data=data, store=store)
    together: list[dict[str, Any]] | None = None
    if settings.store is None:
        examined = [_examine_folder(_data_folder(settings))]
    else:
        found = _databases(settings, command="doctor")
        urls = found.all()
        several = len(urls) > 1
        each_url = list(urls.values()) if several else [found.urls[0]]
        examined = [_examine_database(found, url, settings.durability, several=several) for url in each_url]
        if several:
            together = _checks(_run(lambda: found.parts.examine_together(urls)))
    checks = [check for each in examined for check in each["checks"]] + (together or [])
    failed = sum(not check["ok"] for check in checks)
    if json and together is not None:
        print_json({"ok": not failed, "databases": examined, "together": together})
    elif json:
        print_json(examined[0])
    else:
        for each in examined:
            print_aligned([next(iter(each.items())), *each["facts"].items()])
            _print_checks(each["checks"])
        if together is not None:
            print_aligned([("together", f"{len(examined)} databases")])
            _print_checks(together)
        print(f"{failed} of {len(checks)} checks failed." if failed else "Every check is ok.")
    return int(failed > 0)


def _examine_folder(folder: Path) -> dict[str, Any]:
    with needs_extra("server", command="doctor"):
        from veilmq.store.sqlite.copying import examine
        from veilmq.store.sqlite.database import FolderError
    try:
        report = examine(folder)
    except FolderError as error:
        raise CommandFailed(str(error)) from error
    return _examined({"folder": str(folder)}, report.facts, _checks(report.findings))


def _examine_database(found: Databases, url: str, durability: str, *, several: bool) -> dict[str, Any]:
    """Examine one database; of ``several`` one that cannot be reached is a check that failed."""
    try:
        place, report = _run(lambda: found.parts.examination(url, durability=durability))
    except CommandFailed as error:
        if not several:
            raise
        return _examined({"store": without_passwords(url)}, {}, [_check("it can be examined", str(error), ok=False)])
    return _examined({"store": place}, report.facts, _checks(report.findings))


def _examined(place: dict[str, str], facts: Mapping[str, str | int], checks: list[dict[str, Any]]) -> dict[str, Any]:
    return {**place, "ok": all(check["ok"] for check in checks), "facts": facts, "checks": checks}


def _checks(findings: Iterable[Any]) -> list[dict[str, Any]]:
    return [_check(each.check, each.detail, ok=each.ok) for each in findings]


def _check(name: str, detail: str, *, ok: bool) -> dict[str, Any]:
    remedy = {} if ok else {"remedy": REMEDIES.get(name, _DEFECT)}
    return {"check": name, "ok": ok, "detail": detail, **remedy}


def _print_checks(checks: Sequence[Mapping[str, Any]]) -> None:
    print()
    for check in checks:
        print(f"{'ok    ' if check['ok'] else 'FAILED'}  {check['check']}")
        for line in [*check["detail"].splitlines(), *([check["remedy"]] if "remedy" in check else ())]:
            print(f"        {line}")
    print()


# Copies, and what only a running server does.


def backup(
    *,
    to: Annotated[Path, Parameter(metavar="PATH", help="What to write: a new folder, or a new file that ends in .db.")],
    data: Data = None,
    store: Annotated[list[str] | None, Parameter(name="--store", show=False)] = None,  # to say what to do instead
    config: Config = None,
    json: Json = False,
) -> None:
    """Copy a data folder, also beside a running server, and check the copy.

    To restore it, start a server on it: veilmq serve --data PATH.
    """
    settings = _read_settings(config, data=data, store=store)
    if settings.store is not None:
        raise UsageError(
            "A store on PostgreSQL is backed up with PostgreSQL's own means (snapshots, pg_basebackup, pg_dump), all "
            "its databases at one time; name a data folder with --data, or copy a stopped store with veilmq copy."
        )
    with needs_extra("server", command="backup"):
        from veilmq.store.sqlite.copying import back_up
        from veilmq.store.sqlite.database import FolderError
    folder = _data_folder(settings)
    try:
        with progress("copied", unit="pages") as report:
            facts = back_up(folder, to, progress=report)
    except FolderError as error:
        raise CommandFailed(str(error)) from error
    document = {"path": str(to), "database_bytes": facts["database_bytes"], "facts": facts}
    print_result(document, [[("backup", to), *facts.items()]], json=json)


def copy(
    *,
    source: Annotated[
        str, Parameter(name="--from", metavar="STORE", help="Source: a data folder, or postgresql://… of a database.")
    ],
    to: Annotated[str, Parameter(metavar="STORE", help="Target: a new folder, or the URL of an empty database.")],
    json: Json = False,
) -> None:
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
    print_result({"messages": messages}, [[("messages", messages)]], json=json)


def flush(*, json: Json = False, admin_endpoint: AdminEndpoint = DEFAULT_ADMIN_ENDPOINT) -> None:
    """Have a server export the whole event log now, and wait for it."""
    from veilmq.cli.connection import post

    reply = post(admin_endpoint, "/events/flush")
    while reply.status == 202:  # the server replies before its connection ends, and takes another request to wait on
        reply = post(admin_endpoint, "/events/flush")
    if reply.status != 200:
        raise CommandFailed(reply.data.decode(errors="replace").strip() or f"The server answered {reply.status}.")
    found = reply.json()
    text = f"Exported {found['exported']} events in all; {found['waiting']} wait, {found['dropped']} were dropped."
    print_result(found, text, json=json)


def trust(*, json: Json = False, admin_endpoint: AdminEndpoint = DEFAULT_ADMIN_ENDPOINT) -> None:
    """Have a server accept the present time of its clock as right.

    What it held back because it doubted the clock is applied. A server with
    accounts needs the key of its own account's root user.
    """
    from veilmq.cli.connection import post

    reply = post(admin_endpoint, "/api/clock/trust")
    try:
        message = reply.json()["message"]
    except (ValueError, LookupError, TypeError):
        message = f"{admin_endpoint} is not the admin port of a veilmq server: it answered {reply.status}."
        raise CommandFailed(message) from None
    if reply.status != 200:
        raise CommandFailed(message)
    print_result({"message": message}, message, json=json)


database_app, events_app, clock_app = App(name="database"), App(name="events"), App(name="clock")
for function, name in ((add, "add"), (remove, "remove"), (list_databases, "list")):
    database_app.command(function, name=name)
events_app.command(flush)
clock_app.command(trust)
