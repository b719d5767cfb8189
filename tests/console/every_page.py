"""The addresses of all pages of the console, from its table of pages."""

import re

from veilmq.console.pages import PAGES

ACCOUNT = "000000000000"
UNSEEN = {"/console/logout", "/console/live"}  # a redirect; a stream


def addresses(queue: str, **values: str) -> dict[str, str]:
    """Return short name → address of all pages, those of a queue for ``queue``.

    ``values`` has parameters of paths other than account and name.
    """
    filled = {"account": ACCOUNT, "name": queue, **values}
    paths = dict.fromkeys(page.path for page in PAGES if page.path not in UNSEEN)
    return {_short(path): re.sub(r"\{(\w+)[^}]*\}", lambda found: filled[found[1]], path) for path in paths}


def _short(path: str) -> str:
    of_queue = path.removeprefix("/console/").replace("queues/{account}/{name}", "queue").replace("queues/", "queue-")
    return re.sub(r"[^a-z-]+", "-", of_queue.replace("{account}/{name}", "queue")).strip("-")
