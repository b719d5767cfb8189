"""``veilmq database``: which databases a store on PostgreSQL has."""

from typing import Annotated, Any

from cyclopts import Parameter

from veilmq.cli.failures import UsageError
from veilmq.cli.options import Json
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.settings_options import Config, option_of, read_settings
from veilmq.cli.store_option import databases, done
from veilmq.store.urls import split_urls

Store = Annotated[list[str] | None, option_of("store")]
Url = Annotated[str, Parameter(help="URL of an empty database, without a password.")]
Name = Annotated[str, Parameter(help="Number or URL of a database, as `veilmq database list` prints them.")]


def add(url: Url, /, *, store: Store = None, config: Config = None, json: Json = False) -> None:
    """Add an empty database to a store; servers notice it within seconds.

    New queues go where the fewest are. For a database whose address has
    changed, give the new URL.
    """
    parts, home = _home(store, config, command="database add")
    try:
        (added,) = split_urls(url)
    except ValueError as error:
        raise UsageError(f"{error} is not the URL of one database (postgresql://…).") from error
    _print([done(lambda: parts.add(home, added))], json=json)


def remove(name: Name, /, *, store: Store = None, config: Config = None, json: Json = False) -> None:
    """Remove an empty database from a store."""
    parts, home = _home(store, config, command="database remove")
    _print([done(lambda: parts.remove(home, name))], json=json)


def list_databases(*, store: Store = None, config: Config = None, json: Json = False) -> None:
    """Print the databases of a store, the home first, with the number of their queues."""
    parts, home = _home(store, config, command="database list")
    found = done(lambda: parts.listing(home))
    if json:
        print_json([each._asdict() for each in found])
    else:
        _print(found, json=False)


def _home(store: list[str] | None, config: Any, *, command: str) -> tuple[Any, str]:
    settings = read_settings({"store": store}, config)
    if settings.store is None:
        raise UsageError("The settings name no database; name the home of the store with --store.")
    found = databases(settings, command=command)
    return found.parts, found.urls[0]


def _print(found: list[Any], *, json: bool) -> None:
    if json:
        print_json(found[0]._asdict())
        return
    for place, each in enumerate(found):
        if place:
            print()
        shown = [("number", each.number), ("database", each.database)]
        print_aligned([*shown, ("queues", each.queues) if each.error is None else ("error", each.error)])
