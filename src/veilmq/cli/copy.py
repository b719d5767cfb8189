"""``veilmq copy``."""

import asyncio
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed
from veilmq.cli.options import Json
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.progress import progress

From = Annotated[
    str, Parameter(name="--from", metavar="STORE", help="What to copy: a data folder, or postgresql://… of a database.")
]
To = Annotated[
    str, Parameter(name="--to", metavar="STORE", help="Where to: a folder that is not there yet, or an empty database.")
]


def copy(*, source: From, to: To, json: Json = False) -> None:
    """Copy a stopped store to another one, of the same kind or of the other.

    All of it or nothing; the source stays as it is.
    """
    with needs_extra("server", command="copy"):
        from veilmq.server.stores import copy_store
        from veilmq.store.clock import SystemClock
        from veilmq.store.copying import CopyRefused
        from veilmq.store.port import StoreError
    try:
        with progress("copied", unit="messages") as told:
            messages = asyncio.run(copy_store(source, to, clock=SystemClock(), progress=told))
    except (CopyRefused, StoreError) as error:
        raise CommandFailed(str(error)) from error
    if json:
        print_json({"messages": messages})
    else:
        print_aligned([("messages", messages)])
