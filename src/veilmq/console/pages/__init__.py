"""The table of all pages; each module has the pages of one topic."""

from veilmq.console.page_context import PageRoute
from veilmq.console.pages import (
    accounts,
    audit,
    claims,
    dead_letters,
    live,
    login,
    messages,
    queue,
    queue_form,
    queues,
    server,
)

PAGES: tuple[PageRoute, ...] = (
    *login.PAGES,
    *live.PAGES,
    *queues.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *queue_form.PAGES,
    *queue.PAGES,
    *claims.PAGES,
    *accounts.PAGES,
    *server.PAGES,
    *audit.PAGES,
)
"""All pages; the first that matches a path is used."""
