"""Every page as it looks: nothing keeps people out of it, in light and in dark, and it fits a telephone.

``make screenshots`` has the same pages kept as the pictures of the documentation (``PICTURES`` names the folder).
"""

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

from tests.console.barriers import barriers
from tests.console.conftest import Visit, visiting
from tests.console.every_page import addresses
from tests.console.scene import staged
from tests.server.keys import written
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

WIDE, NARROW = 1280, 390
HEIGHT = 844
PICTURE_HEIGHT_MAX = 1_800
COLOURS = 256
SEEN: Final = {name: path for name, path in addresses("orders").items() if name != "login"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """The shop, for all pages."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        staged(running, client)
        yield running


@pytest.mark.parametrize("name", SEEN)
def test_a_page_keeps_nobody_out_and_fits(visit: Visit, name: str) -> None:
    look_at(visit(SEEN[name]), name)


def test_the_way_in_does_too(browser: Browser, tmp_path: Path) -> None:
    keys = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=keys) as running, visiting(browser, running) as visit:
        look_at(visit(), "login")


def look_at(page: Page, name: str) -> None:
    """Look at a page in each light and at each width."""
    assert page.get_by_role("heading", level=1).count() == 1
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            if (scheme, width) != ("dark", NARROW):  # whose colours and whose order were both looked at
                assert barriers(page) == [], (name, scheme, width)
            _keep(page, f"{name}-{scheme}-{width}")


def _keep(page: Page, name: str) -> None:
    """Write what is seen as a small picture, if pictures are wanted."""
    folder = os.environ.get("PICTURES")
    if folder:
        whole = Image.open(BytesIO(page.screenshot(full_page=True, animations="disabled"))).convert("RGB")
        shown = whole.crop((0, 0, whole.width, min(whole.height, PICTURE_HEIGHT_MAX)))
        few = shown.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(Path(folder) / f"{name}.png", optimize=True)
