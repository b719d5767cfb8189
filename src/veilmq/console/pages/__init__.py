"""The pages of the console: every module has the rows of one noun, and this is the table of all."""

from veilmq.console.page import Page
from veilmq.console.pages import login, queues

PAGES: tuple[Page, ...] = (
    *login.PAGES,
    *queues.PAGES,
)
"""Every page; the first row that fits a path answers."""
