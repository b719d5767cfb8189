"""The pages of the console: every module has the rows of one noun, and this is the table of all."""

from veilmq.console.pages import (
    accounts,
    audit,
    claims,
    dead_letters,
    live,
    login,
    message_sends,
    messages,
    moves,
    queue,
    queue_form,
    queues,
    server,
)
from veilmq.console.visit import Page

PAGES: tuple[Page, ...] = (
    *login.PAGES,
    *live.PAGES,
    *queues.PAGES,
    *message_sends.PAGES,
    *messages.PAGES,
    *dead_letters.PAGES,
    *moves.PAGES,
    *queue_form.PAGES,
    *queue.PAGES,
    *claims.PAGES,
    *accounts.PAGES,
    *server.PAGES,
    *audit.PAGES,
)
"""Every page; the first row that fits a path answers."""
