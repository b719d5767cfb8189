"""What a page of the console is: a row of the table that ``console.pages`` puts together."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.responses import Response

from veilmq.console.visit import Visit

HOME = "/console/queues"
"""Where one is without having asked for any page."""

SIGN_IN = "/console/login"


class Page(NamedTuple):
    """``show`` answers GET, ``change`` POST, with the form read and its token checked; ``path`` is Starlette's.

    One that is ``open`` is for whoever has not signed in, too.
    """

    path: str
    show: Callable[[Visit], Awaitable[Response]]
    change: Callable[[Visit], Awaitable[Response]] | None = None
    open: bool = False
