"""``veilmq migrate``."""

from typing import Annotated

import msgspec
from cyclopts import Parameter

from veilmq.cli.failures import CommandFailed, UsageError
from veilmq.cli.options import Json
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.settings_options import Config, option_of, read_settings
from veilmq.cli.store_option import Databases, databases, done
from veilmq.store.urls import without_passwords

Check = Annotated[
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
    check: Check = False,
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
    home = _try(found, found.urls[0], check=check)
    others = list(found.all().values())[1:]  # as the home knows them when it is upgraded
    if others:
        return _migrate_others(found, home, others, check=check, json=json)
    if isinstance(home, Failure):
        raise CommandFailed(home.error)
    if json:
        print_json(home)
    else:
        _print(home)
    return 1 if check and home.upgrades else 0


def _migrate_others(found: Databases, home: Migration | Failure, others: list[str], *, check: bool, json: bool) -> int:
    """Go on where one fails, and say so as it comes: an upgrade may take long."""
    told = [home]
    if not json:
        _print_one_of_several(home)
    for url in others:
        told.append(_try(found, url, check=check))
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


def _try(found: Databases, url: str, *, check: bool) -> Migration | Failure:
    try:
        upgrade = done(lambda: found.parts.upgrade(url, apply=not check))
    except CommandFailed as error:
        return Failure(store=without_passwords(url), error=str(error))
    return Migration(store=upgrade.place, format=upgrade.found, upgrades=upgrade.upgrades, applied=not check)


def _print_one_of_several(told: Migration | Failure) -> None:
    if isinstance(told, Failure):
        print_aligned([("store", told.store), ("FAILED", told.error)])
    else:
        _print(told)
    print(flush=True)


def _print(migration: Migration) -> None:
    rows = [("store", migration.store), ("format", str(migration.format))]
    if migration.upgrades:
        rows.append(("applied" if migration.applied else "to apply", "\n".join(migration.upgrades)))
    print_aligned(rows)
    if not migration.upgrades:
        print("\nThe schema has all that this version needs.")
