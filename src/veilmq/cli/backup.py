"""``veilmq backup``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.data_folder import data_folder
from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed, UsageError
from veilmq.cli.options import Json
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.progress import progress
from veilmq.cli.settings_options import Config, option_of, read_settings

Store = Annotated[list[str] | None, Parameter(name="--store", show=False)]
"""Not to be had, but asked for by whoever gives all commands what he gives serve: he is told what to do."""

To = Annotated[Path, Parameter(metavar="PATH", help="What to write: a new folder, or a new file that ends in .db.")]


def backup(
    *,
    to: To,
    data: Annotated[str | None, option_of("data")] = None,
    store: Store = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Copy a data folder, also beside a running server, and check the copy.

    To restore it, start a server on it: veilmq serve --data PATH.
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
