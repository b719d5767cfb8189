"""The settings that the server runs with."""

from http import HTTPStatus

from starlette.responses import Response

from veilmq.console.page import Page
from veilmq.console.visit import Visit


async def show(visit: Visit) -> Response:
    """Show them to whoever may see what is of the whole server."""
    if not visit.is_operator:
        return visit.page("operators_only.html", status=HTTPStatus.FORBIDDEN, title="Settings")
    settings = visit.ports.settings
    return visit.page("settings.html", settings=settings, given=sum(not each.is_default for each in settings))


PAGES = (Page("/console/settings", show),)
