"""The address of every page of the console that is looked at, found by the table of pages itself."""

import re

from veilmq.console.pages import PAGES

ACCOUNT = "000000000000"
UNSEEN = {"/console/logout", "/console/live"}  # only sends on; a stream


def addresses(queue: str, **values: str) -> dict[str, str]:
    """Return the addresses of all pages by a short name each; those of a queue are ``queue``'s.

    ``values`` are those of parameters of a path beside account and name.
    """
    filled = {"account": ACCOUNT, "name": queue, **values}
    paths = dict.fromkeys(page.path for page in PAGES if page.path not in UNSEEN)
    return {_short(path): re.sub(r"\{(\w+)[^}]*\}", lambda found: filled[found[1]], path) for path in paths}


def _short(path: str) -> str:
    of_queue = path.removeprefix("/console/").replace("queues/{account}/{name}", "queue").replace("queues/", "queue-")
    return re.sub(r"[^a-z-]+", "-", of_queue.replace("{account}/{name}", "queue")).strip("-")
