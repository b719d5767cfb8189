"""How the server is: what is in its way, where messages are kept, and its numbers."""

from starlette.responses import Response

from veilmq.console.page import Page
from veilmq.console.visit import Visit
from veilmq.core.limits import SECOND_MS


async def show(visit: Visit) -> Response:
    """Show it; where messages are kept only to whoever may see what is of the whole server."""
    health = await visit.ports.health()
    return visit.page(
        "health.html",
        health=health,
        up_s=(visit.now_ms - health.started_at_ms) / SECOND_MS,
        is_operator=visit.is_operator,
    )


PAGES = (Page("/console/health", show),)
