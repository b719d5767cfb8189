"""Screenshots of every page, and the queues that they show: `python -m tests.console.pictures` writes their page."""

import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

from PIL import Image
from playwright.sync_api import Page

from tests.console.every_page import ACCOUNT, addresses
from tests.console.visitor import Visitor
from tests.tidy.tree import ROOT
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.client.api import Claims
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer

QUIET = (
    "accounting",
    "invoices",
    "newsletter",
    "parcels-tracking",
    "search-index",
    "thumbnails-large",
    "warehouse-sync",
)
LETTERS = 6
HELD_S = (2, 3, 4, 4, 5, 6, 7, 9, 11, 13, 16, 20, 26, 33, 41, 47, 52, 60, 64, 70)
CLAIMS = f"/console/claims/{ACCOUNT}/clicks"
OFTEN = 3


def places() -> dict[str, str]:
    """Return the addresses of all pages, each with a queue that has content for it."""
    claims = {
        "claims-queue": CLAIMS,
        "claims-queue-release": f"{CLAIMS}/release?source=spark-clicks&number=2",
        "claims-queue-evict": f"{CLAIMS}/evict?source=spark-clicks&number=1",
        "claims-queue-close": f"{CLAIMS}/close?source=spark-clicks",
    }
    dead = {"queue-dead-letters": f"/console/queues/{ACCOUNT}/orders-dead/dead-letters"}
    found = addresses("orders")
    assert found.keys() >= claims.keys() | dead.keys()
    return found | claims | dead


def staged(server: RunningServer, client: HttpQueueClient) -> None:
    """Create queues in use on ``server``; advances its clock by five minutes."""
    _make_queues(client)
    _hold_for_a_while(server, client)
    _let_orders_fail(server, client)
    with Visitor(server) as watching:
        _work_on_orders(server, client, watching)
    _read_by_claims(server, client)
    client.receive("payments.fifo", count=2)
    _change_settings(server)
    client.start_move("emails-dead", moves_per_s_max=1)
    server.advance(seconds=2)


def go_on(server: RunningServer, client: HttpQueueClient, seen: Callable[[str, str], None]) -> None:
    """End leases of orders in every way.

    ``seen`` is called with the id of a message and the expected state of its bar, and returns once the page shows it.
    """
    taken = [client.receive("orders", count=1, timeout_s=timeout_s, wait_s=0)[0] for timeout_s in (8, 40, 50, 60)]
    expiring, deleted, returned, extended = taken
    server.advance(seconds=3)
    for each in taken:
        seen(each.id, "held")
    client.delete("orders", deleted.receipt)
    server.advance(seconds=3)
    seen(deleted.id, "deleted")
    client.change_visibility("orders", returned.receipt, 0)
    client.change_visibility("orders", extended.receipt, 90)
    server.advance(seconds=3)
    seen(returned.id, "returned")
    seen(expiring.id, "expired")


def _make_queues(client: HttpQueueClient) -> None:
    client.create_queue("orders-dead")
    client.create_queue(
        "orders",
        {"visibility_timeout_s": 45, "dead_letter_queue": "orders-dead", "receives_max": OFTEN},
        tags={"team": "checkout", "cost-centre": "4711"},
    )
    client.create_queue("emails-dead")
    client.create_queue("emails", {"visibility_timeout_s": 1, "dead_letter_queue": "emails-dead", "receives_max": 1})
    client.create_queue("payments.fifo", {"fifo": True, "visibility_timeout_s": 120, "content_deduplication": True})
    client.create_queue("clicks", {"visibility_timeout_s": 300})
    for name in QUIET:
        client.create_queue(name)
    for number in range(12):
        client.send("payments.fifo", f"payment {number}", group=f"customer-{number % 4}")


def _hold_for_a_while(server: RunningServer, client: HttpQueueClient) -> None:
    """Fill the event log: most messages are held for a short time, a few longer than the timeout."""
    for short in range(4):
        held_s = HELD_S[: 10 + 3 * short] if short < 3 else HELD_S
        for begin in range(0, len(held_s), 10):
            client.send_batch("orders", [_order(number) for number in range(len(held_s[begin : begin + 10]))])
        taken = [message for _ in range(2) for message in client.receive("orders", count=10, wait_s=0)]
        passed_s = 0
        for message, until_s in zip(taken, held_s, strict=True):
            server.advance(seconds=until_s - passed_s)
            passed_s = until_s
            client.delete("orders", message.receipt)
    server.advance(seconds=60)


def _let_orders_fail(server: RunningServer, client: HttpQueueClient) -> None:
    for number in range(LETTERS):
        client.send("orders", f'{{"order": {number + 900}, "total": null}}', attributes=_KIND)
        client.send("emails", f"letter {number} to nobody@example.org")
    for _ in range(OFTEN + 1):
        client.receive("orders", count=10, wait_s=0)
        client.receive("emails", count=10, timeout_s=5, wait_s=0)
        server.advance(seconds=46)


def _work_on_orders(server: RunningServer, client: HttpQueueClient, watching: Visitor) -> None:
    """Delete most messages; renew, release and let expire the leases of the others.

    Each listing by ``watching`` adds to the history of the queues.
    """
    for begin in range(0, 60, 10):
        client.send_batch("orders", [_order(number) for number in range(begin, begin + 10)])
    client.send_batch("orders", [NewMessage(body=f"later {number}", delay_s=600) for number in range(5)])
    for round_ in range(24):
        taken = client.receive("orders", count=1, timeout_s=(30, 45, 90)[round_ % 3], wait_s=0)
        server.advance(seconds=3 + round_ % 5)
        watching.get("/console/queues")
        if round_ % 3 == 0:
            client.send("orders", f'{{"order": {round_ + 2000}, "customer": "customer-1", "total": 7.00}}')
        for message in taken:
            if round_ % 6 == 1:
                client.change_visibility("orders", message.receipt, 0)
            elif round_ % 6 == 2:
                client.change_visibility("orders", message.receipt, 120)
            elif round_ % 6 != 5:
                client.delete("orders", message.receipt)
    for timeout_s in (20, 75, 110, 45):
        client.receive("orders", count=1, timeout_s=timeout_s, wait_s=0)
        server.advance(seconds=2)
        watching.get("/console/queues")


def _read_by_claims(server: RunningServer, client: HttpQueueClient) -> None:
    for begin in range(0, 50, 10):
        client.send_batch("clicks", [NewMessage(body=f"click {number}") for number in range(begin, begin + 10)])
    with Claims(server.endpoint, client.queue_url("clicks")) as claims:
        claims.open("spark-clicks", consumer="query 7, driver", hold_s=3_600, lease_s=60)
        claims.claim("spark-clicks", epoch=1, number=1, messages_max=20)
        claims.claim("spark-clicks", epoch=1, number=2, messages_max=15)


def _change_settings(server: RunningServer) -> None:
    with Visitor(server) as visitor:
        path = f"/console/queues/{ACCOUNT}"
        assert visitor.post("/console/queues/new", name="returns", visibility_timeout_s="60").status == 200
        assert visitor.post(f"{path}/returns/edit", visibility_timeout_s="90").status == 200
        assert visitor.post(f"{path}/newsletter/purge", confirmation="newsletter").status == 200


_KIND = {"kind": Attribute(type="String", text="order"), "weight": Attribute(type="Number", text="1.5")}


def _order(number: int) -> NewMessage:
    body = f'{{"order": {number + 1000}, "customer": "customer-{number % 7}", "total": {number * 7 % 90 + 10}.50}}'
    return NewMessage(body=body, attributes=_KIND)


# The screenshots of the documentation: every page of the console, light and dark, wide and narrow.
#
# ``make screenshots`` makes the tests of pages save screenshots to ``docs/console``. As a program, this module writes
# the page that shows them.


WIDE, NARROW = 1280, 390
HEIGHT = 844
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
FOLDER = ROOT / "docs" / "console"
SHOWN = FOLDER / "pictures.md"
_HEIGHT_MAX = 1_500
_COLOURS = 256

_HEAD = """# Screenshots of the console

Every page in a browser, light and dark, on a wide screen and on a telephone. `make screenshots` takes them again, with
the same messages and the clock stopped.
"""


def keep(page: Page, name: str, *, scheme: str, width: int) -> None:
    folder = os.environ.get("PICTURES")
    if folder:
        whole = Image.open(BytesIO(page.screenshot(full_page=True, animations="disabled"))).convert("RGB")
        shown = whole.crop((0, 0, whole.width, min(whole.height, _HEIGHT_MAX)))
        few = shown.quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        few.save(Path(folder) / file_of(name, scheme=scheme, width=width), optimize=True)


def file_of(name: str, *, scheme: str, width: int) -> str:
    return f"{name}-{scheme}-{width}.png"


def page_of_pictures() -> str:
    return _HEAD + "".join(_shown(name, path) for name, path in places().items())


def _shown(name: str, path: str) -> str:
    wide = "".join(f"{_picture(name, scheme, WIDE)}\n\n" for scheme in SCHEMES)
    narrow = " | ".join(_picture(name, scheme, NARROW) for scheme in SCHEMES)
    return f"\n## {_words(name)}\n\n`{path}`\n\n{wide}| {' | '.join(SCHEMES)} |\n| --- | --- |\n| {narrow} |\n"


def _picture(name: str, scheme: str, width: int) -> str:
    return f"![{_words(name)}, {scheme}]({file_of(name, scheme=scheme, width=width)})"


def _words(name: str) -> str:
    return name.replace("-", " ").capitalize()


if __name__ == "__main__":
    SHOWN.write_text(page_of_pictures(), encoding="utf-8")
