"""The server: readiness, storage, metrics and settings."""

from http import HTTPStatus

from starlette.responses import Response

from veilmq.console.page_context import PageContext, PageRoute
from veilmq.core.limits import SECOND_MS


async def show_health(page: PageContext) -> Response:
    """Show the health page; the place of storage only to operators."""
    health = await page.ports.health()
    return page.render(
        "health.html",
        health=health,
        up_s=(page.now_ms - health.started_at_ms) / SECOND_MS,
        is_operator=page.is_operator,
    )


async def show_settings(page: PageContext) -> Response:
    """Show the settings, to operators only."""
    if not page.is_operator:
        return page.render("operators_only.html", status=HTTPStatus.FORBIDDEN, title="Settings")
    settings = page.ports.settings
    return page.render("settings.html", settings=settings, changed=sum(not each.is_default for each in settings))


PAGES = (PageRoute("/console/settings", show_settings), PageRoute("/console/health", show_health))
