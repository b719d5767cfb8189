"""Servers and their stores: serve, events, clock, database, doctor, migrate, backup and copy.

The options for settings are derived from ``ServerSettings``. Their values are passed on as text, so that they are
checked like values from the environment or the file.

Most of these commands are not clients; the few that are import the client themselves.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict, Unpack

from cyclopts import Parameter

from veilmq.cli.command import CommandFailed, Result, aligned, command, group, progress
from veilmq.cli.options import ADMIN_ENDPOINT, JSON, UsageError, option
from veilmq.server.settings import FILE_NAME, FILE_VARIABLE, SETTINGS, STORES, SWITCH, ServerSettings, resolve
from veilmq.store.port import Finding, Report, StoreError
from veilmq.store.urls import split_urls, without_passwords

_CONFIG = option(f"Settings file; without it {FILE_VARIABLE}, or {FILE_NAME} in the working directory.", "FILE")


def _options(*names: str, hidden: str = "") -> dict[str, Any]:
    """Return the options for these settings (default: all) and for the file, by name; ``hidden`` is not in the help."""
    options: dict[str, Any] = {}
    for row in SETTINGS:
        if names and row.name not in names:
            continue
        kind, is_switch = {SWITCH: bool, STORES: list[str]}.get(row.kind, str), row.kind is SWITCH
        text = row.description if is_switch else f"{row.description} Must be {row.kind.allowed}."
        shown = {"name": row.flag, "show": row.name != hidden, "show_default": False if is_switch else row.default_text}
        options[row.name] = Annotated[kind, option(text, row.kind.placeholder or None, **shown).parameter]
    return {**options, "config": Annotated[Path, _CONFIG.parameter]}


AllSettings = TypedDict("AllSettings", _options(), total=False)  # type: ignore[misc]
Place = TypedDict("Place", _options("data", "store"), total=False)  # type: ignore[misc]
Folder = TypedDict("Folder", _options("data", "store", hidden="store"), total=False)  # type: ignore[misc]
Home = TypedDict("Home", _options("store"), total=False)  # type: ignore[misc]


def _settings(options: Mapping[str, Any]) -> ServerSettings:
    """Return the settings from ``options``, the environment and the file. Raises ``SettingError``."""
    flags = {name: ",".join(value) if isinstance(value, list) else value for name, value in options.items()}
    return resolve(flags=flags, environment=os.environ, file=options.get("config"))


@command
def serve(*, json: bool = JSON, **options: Unpack[AllSettings]) -> int:
    """Run a server until it is stopped by SIGTERM or Ctrl-C.

    Each option is also a variable of the environment (VEILMQ_ADMIN_PORT for
    --admin-port) and a key of the settings file (admin_port). Options override
    the environment, which overrides the file.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # until its handler is set
    settings = _settings(options)
    from veilmq.server.app import Bound, run

    def show(bound: Bound) -> None:
        where = {"endpoint": bound.endpoint, "admin_endpoint": bound.admin_endpoint}
        Result({**where, "kept": bound.engine.location, "signed": bound.signed}, "").show(json=True)

    return run(settings, ready=show if json else None)


# The other commands use the data folder or the databases that ``serve`` would use with the same settings.


def _data_folder(settings: ServerSettings) -> Path:
    if settings.data is None:
        raise UsageError("The settings name no data folder; name one with --data.")
    return settings.data


def _databases(
    settings: ServerSettings, command: str, missing: str = "name the home of the store with --store."
) -> tuple[Any, tuple[str, ...]]:
    """Return the module ``store.postgres.databases``, and the URLs in ``settings``, the home's first."""
    if settings.store is None:
        raise UsageError(f"The settings name no database; {missing}")
    from veilmq.server.stores import postgres_parts

    return postgres_parts(f"veilmq {command}").databases, split_urls(settings.store)


def _all_urls(parts: Any, urls: tuple[str, ...]) -> dict[int, str]:
    """Return the URLs of all databases by number: those in the home's list, and those given."""
    known = asyncio.run(parts.known_urls(urls[0]))
    return dict(sorted({**known, **dict(enumerate(urls))}.items()))


def add(
    url: Annotated[str, Parameter(help="URL of an empty database, without a password.")],
    /,
    **options: Unpack[Home],
) -> Result:
    """Add an empty database to a store; servers notice it within seconds.

    New queues are created in the database with the fewest queues. If the
    address of a database has changed, pass the new URL.
    """
    parts, (home, *_) = _databases(_settings(options), "database add")
    try:
        (added,) = split_urls(url)
    except ValueError as error:
        raise UsageError(f"{error} is not the URL of one database (postgresql://…).") from error
    found = asyncio.run(parts.add(home, added))._asdict()
    return Result(found, aligned(found.items()))


def remove(
    name: Annotated[str, Parameter(help="Number or URL of a database, as `veilmq database list` prints them.")],
    /,
    **options: Unpack[Home],
) -> Result:
    """Remove an empty database from a store."""
    parts, (home, *_) = _databases(_settings(options), "database remove")
    found = asyncio.run(parts.remove(home, name))._asdict()
    return Result(found, aligned(found.items()))


def list_(**options: Unpack[Home]) -> Result:
    """Print the databases of a store, the home first, with the number of their queues."""
    parts, (home, *_) = _databases(_settings(options), "database list")
    found = [each._asdict() for each in asyncio.run(parts.list_databases(home))]
    return Result(found, aligned(*(each.items() for each in found)))


database_app = group("database", add, remove, list_)


@command
def migrate(
    *,
    check: bool = option("Change nothing; exit with 1 if there is anything to do."),
    json: bool = JSON,
    **options: Unpack[Home],
) -> Result:
    """Upgrade the schema of a PostgreSQL database in one transaction.

    Servers do this when they start, except for upgrades that older servers do
    not support: stop those, run this command, and start the new ones. Several
    databases are upgraded one by one, even if others fail.
    """
    missing = "name one with --store. A data folder upgrades itself."
    parts, urls = _databases(_settings(options), "migrate", missing)
    results: list[dict[str, Any]] = []
    pending = [urls[0]]
    for url in pending:
        try:
            done = asyncio.run(parts.upgrade(url, apply=not check))
            results.append(
                {"store": done.shown_url, "format": done.found, "upgrades": done.upgrades, "applied": not check}
            )
        except StoreError as error:
            results.append({"store": without_passwords(url), "error": str(error)})
        if len(results) == 1:
            pending += list(_all_urls(parts, urls).values())[1:]  # the list is readable once the home is upgraded
            if len(pending) == 1 and "error" in results[0]:
                raise CommandFailed(results[0]["error"])
        if not json:  # at once: an upgrade may take long
            print("\n" * (len(results) > 1) + _upgraded(results[-1]), flush=True)
    result = Result({"databases": results} if len(results) > 1 else results[0], "")
    if failed := [each["store"] for each in results if "error" in each]:
        result.show(json=json)
        raise CommandFailed(
            f"{len(failed)} of {len(results)} databases failed ({', '.join(failed)}); the others are as printed. "
            "Repair them and run this again: it does what is left."
        )
    return result._replace(code=int(check and any(each["upgrades"] for each in results)))


def _upgraded(result: Mapping[str, Any]) -> str:
    names = "\n".join(result.get("upgrades", ())) or None
    done = ("applied" if result.get("applied") else "to apply", names)
    rows = [("store", result["store"]), ("FAILED", result.get("error")), ("format", result.get("format")), done]
    return aligned(rows) + "\n\nThe schema has all that this version needs." * ("format" in result and names is None)


# The doctor.

_DEFECT = (
    "This is a defect of veilmq or of the disk: stop the servers, keep a copy of the store, restore the latest backup "
    "that passes `veilmq doctor`, and report the line above as an issue."
)
_SETTINGS = "then reload the settings: SELECT pg_reload_conf()."
UNREACHED = "it can be examined"
REMEDIES = {
    "the database file is sound": "Stop the server and restore the folder from the latest backup (`veilmq backup`); "
    "check the disk and the memory of the machine.",
    "there is a schema": "Run `veilmq migrate`, or start a server on the database.",
    "the schema is complete for this version": "Run `veilmq migrate`, or start a server of this version.",
    "the version of the server is supported": "Upgrade PostgreSQL to version 15 or newer.",
    "the server is the primary": "Name the primary with --store, or add target_session_attrs=read-write to the URL.",
    "autovacuum is on": f"Run ALTER SYSTEM SET autovacuum = on, {_SETTINGS}",
    "acknowledged commits are durable": f"Change the settings named above, {_SETTINGS} Or accept the risk with "
    "--durability standard.",
    UNREACHED: "Start the database or make it reachable; if its address has changed, run `veilmq database "
    "add` with the new URL.",
    "the databases are one store": "Start those that cannot be reached. If one is of another store, name the home of "
    "this one with --store; `veilmq database list` prints its databases, `add` and `remove` change them.",
    "every queue is in the database that the home names": "Start those that cannot be reached. Start all servers with "
    "the URL of the same home; move the messages of a misplaced queue, and delete it there.",
}
"""The remedies for failed checks; for all others ``_DEFECT``."""


@command
def doctor(**options: Unpack[Place]) -> Result:
    """Check a data folder or a database without changing it; servers may run.

    The store is the one that serve would use with the same settings. Several
    databases are checked one by one and together. The remedy is printed below
    each failed check.
    """
    settings = _settings(options)
    if settings.store is None:
        from veilmq.store.sqlite.copying import examine

        folder = _data_folder(settings)
        examined = [_examined("folder", str(folder), examine(folder))]
    else:
        parts, urls = _databases(settings, "doctor")
        all_urls = _all_urls(parts, urls)
        examined = []
        for url in all_urls.values():
            try:
                place, report = asyncio.run(parts.examine_database(url, durability=settings.durability))
            except StoreError as error:
                if len(all_urls) == 1:
                    raise
                place, report = without_passwords(url), Report([Finding(UNREACHED, False, str(error))], {})
            examined.append(_examined("store", place, report))
        if len(all_urls) > 1:
            together = Report(asyncio.run(parts.examine_together(all_urls)), {})
            examined.append(_examined("together", f"{len(all_urls)} databases", together))
    checks = [check for each in examined for check in each["checks"]]
    failed = sum(not check["ok"] for check in checks)
    document = examined[0]
    if len(examined) > 1:
        document = {"ok": not failed, "databases": examined[:-1], "together": examined[-1]["checks"]}
    end = f"{failed} of {len(checks)} checks failed." if failed else "Every check is ok."
    return Result(document, "\n\n".join([*map(_shown, examined), end]), code=int(failed > 0))


def _examined(kind: str, place: str, report: Report) -> dict[str, Any]:
    remedies = [{} if each.ok else {"remedy": REMEDIES.get(each.check, _DEFECT)} for each in report.findings]
    checks = [each._asdict() | remedy for each, remedy in zip(report.findings, remedies, strict=True)]
    return {kind: place, "ok": report.ok, "facts": report.facts, "checks": checks}


def _shown(examined: Mapping[str, Any]) -> str:
    (first, *_) = examined.items()
    lines = [aligned([first, *examined["facts"].items()]), ""]
    for check in examined["checks"]:
        lines.append(f"{'ok    ' if check['ok'] else 'FAILED'}  {check['check']}")
        details = [*check["detail"].splitlines(), *([check["remedy"]] if "remedy" in check else ())]
        lines += [f"        {line}" for line in details]
    return "\n".join(lines)


@command
def backup(
    *,
    to: Annotated[Path, Parameter(metavar="PATH", help="What to write: a new folder, or a new file that ends in .db.")],
    **options: Unpack[Folder],
) -> Result:
    """Copy a data folder, and check the copy; a server may run.

    To restore it, start a server on it: veilmq serve --data PATH.
    """
    settings = _settings(options)
    if settings.store is not None:
        raise UsageError(
            "A store on PostgreSQL is backed up with PostgreSQL's own means (snapshots, pg_basebackup, pg_dump), all "
            "its databases at one time; name a data folder with --data, or copy a stopped store with veilmq copy."
        )
    from veilmq.store.sqlite.copying import back_up

    folder = _data_folder(settings)
    with progress("pages", {"copied": None}) as report:
        facts = back_up(folder, to, progress=partial(report, "copied"))
    document = {"path": str(to), "database_bytes": facts["database_bytes"], "facts": facts}
    return Result(document, aligned([("backup", to), *facts.items()]))


@command
def copy(
    *,
    source: Annotated[
        str, Parameter(name="--from", metavar="STORE", help="Source: a data folder, or postgresql://… of a database.")
    ],
    to: Annotated[str, Parameter(metavar="STORE", help="Target: a new folder, or the URL of an empty database.")],
) -> Result:
    """Copy a stopped store to another one, of the same kind or the other.

    Everything is copied or nothing; the source is not changed.
    """
    from veilmq.server.stores import copy_store
    from veilmq.store.clock import SystemClock

    with progress("messages", {"copied": None}) as report:
        messages = asyncio.run(copy_store(source, to, clock=SystemClock(), progress=partial(report, "copied")))
    return Result({"messages": messages}, aligned([("messages", messages)]))


def flush(*, admin_endpoint: str = ADMIN_ENDPOINT) -> Result:
    """Make a server export the whole event log now, and wait for it."""
    from veilmq.cli.connection import post

    reply = post(admin_endpoint, "/events/flush")
    while reply.status == 202:  # not finished when the server had to reply
        reply = post(admin_endpoint, "/events/flush")
    if reply.status in (409, 503):
        raise CommandFailed(reply.data.decode(errors="replace").strip())
    found = _members(reply, admin_endpoint, "exported", "waiting", "dropped")
    return Result(found, "Exported {exported} events in all; {waiting} wait, {dropped} were dropped.".format(**found))


def trust(*, admin_endpoint: str = ADMIN_ENDPOINT) -> Result:
    """Make a server accept the current time of its clock.

    Time that it has held back because it doubted the clock is applied. A server
    with accounts requires the key of the root user of its own account.
    """
    from veilmq.cli.connection import post

    reply = post(admin_endpoint, "/api/clock/trust")
    found = _members(reply, admin_endpoint, "message")
    if reply.status != 200:
        raise CommandFailed(found["message"])
    return Result(found, found["message"])


def _members(reply: Any, admin_endpoint: str, *names: str) -> dict[str, Any]:
    try:
        found = reply.json()
        return {name: found[name] for name in names}
    except (ValueError, LookupError, TypeError):
        error = f"{admin_endpoint} is not the admin port of a veilmq server: it answered {reply.status}."
        raise CommandFailed(error) from None


events_app, clock_app = group("events", flush), group("clock", trust)
