"""``veilmq migrate``."""

from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from veilmq.cli.failures import UsageError
from veilmq.cli.options import Json
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.settings_options import Config, option_of, read_settings
from veilmq.cli.store_option import on_database

Check = Annotated[
    bool, Parameter(negative=(), help="Change nothing; exit with 1 if there is anything to do.", show_default=False)
]


class Migration(msgspec.Struct, kw_only=True):
    """What was done, or would be; ``format`` is the number of the last upgrade before."""

    store: str
    format: int
    upgrades: list[str]
    applied: bool


def migrate(
    *,
    store: Annotated[str | None, option_of("store")] = None,
    check: Check = False,
    config: Config = None,
    json: Json = False,
) -> int:
    """Upgrade the schema of a PostgreSQL database, all of it or nothing.

    Servers do so by themselves when they start, but for upgrades that older
    servers could not go on with: stop those, run this, and start the new ones.
    """
    migration = _migrate(store, config, check=check)
    if json:
        print_json(migration)
    else:
        _print(migration)
    return 1 if check and migration.upgrades else 0


def _migrate(store: str | None, config: Any, *, check: bool) -> Migration:
    settings = read_settings({"store": store}, config)
    if settings.store is None:
        raise UsageError("The settings name no database; name one with --store. A data folder upgrades itself.")
    done = on_database(settings, command="migrate", work=lambda parts, url: parts.upgrade(url, apply=not check))
    return Migration(store=done.place, format=done.found, upgrades=done.upgrades, applied=not check)


def _print(migration: Migration) -> None:
    rows = [("store", migration.store), ("format", str(migration.format))]
    if migration.upgrades:
        rows.append(("applied" if migration.applied else "to apply", "\n".join(migration.upgrades)))
    print_aligned(rows)
    if not migration.upgrades:
        print("\nThe schema has all that this version needs.")
