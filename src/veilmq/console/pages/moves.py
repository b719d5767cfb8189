"""Move tasks of the account: running and recent redrives."""

from starlette.responses import Response

from veilmq.console.move_tasks import Task, tasks_of
from veilmq.console.page_context import PageContext, PageRoute

_PAGE_QUEUES = 200
_QUEUES_MAX = 1_000
_QUERIED_MAX = 50


async def show(page: PageContext) -> Response:
    """Show the move tasks of the account's dead-letter queues, running ones first."""
    names, is_cut = await _dead_letter_queues(page)
    queried = names[:_QUERIED_MAX]
    tasks: list[Task] = []
    for name in queried:
        tasks += await tasks_of(page, f"{page.account}/{name}") or ()
    tasks.sort(key=lambda task: (task.handle is None, -task.started_at_ms))
    return page.render("moves.html", queue="", tasks=tasks, known=len(names), queried=len(queried), is_cut=is_cut)


async def _dead_letter_queues(page: PageContext) -> tuple[list[str], bool]:
    """Return the dead-letter queues of the account's queues, and whether there may be more."""
    named: set[str] = set()
    for first in range(0, _QUEUES_MAX, _PAGE_QUEUES):
        query = {"first": first, "count": _PAGE_QUEUES}
        browsed = await page.api("GET", f"/v1/queues/{page.account}", query=query)
        named |= {
            each["dead_letter_queue"].rpartition("/")[2] for each in browsed["queues"] if each["dead_letter_queue"]
        }
        if first + _PAGE_QUEUES >= browsed["in_all"]:
            return sorted(named), False
    return sorted(named), True


PAGES = (PageRoute("/console/moves", show),)
