"""The server: readiness, storage, metrics and settings."""

from http import HTTPStatus

from starlette.responses import Response

from veilmq.console.visit import Page, Visit
from veilmq.core.limits import SECOND_MS


async def show_health(visit: Visit) -> Response:
    """Show the health page; the place of storage only to operators."""
    health = await visit.ports.health()
    return visit.page(
        "health.html",
        health=health,
        up_s=(visit.now_ms - health.started_at_ms) / SECOND_MS,
        is_operator=visit.is_operator,
    )


async def show_settings(visit: Visit) -> Response:
    """Show the settings, to operators only."""
    if not visit.is_operator:
        return visit.page("operators_only.html", status=HTTPStatus.FORBIDDEN, title="Settings")
    settings = visit.ports.settings
    return visit.page("settings.html", settings=settings, given=sum(not each.is_default for each in settings))


PAGES = (Page("/console/settings", show_settings), Page("/console/health", show_health))
