"""The pictures of the documentation: every page of the console in light and dark, wide and narrow.

``make screenshots`` has the tests of the pages keep what they see in ``docs/console``. Run as a program, this module
writes the page of the documentation that shows them.
"""

import os
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

from PIL import Image
from playwright.sync_api import Page

from tests.console.scene import places
from tests.tidy.tree import ROOT

WIDE, NARROW = 1280, 390
HEIGHT = 844
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
FOLDER = ROOT / "docs" / "console"
SHOWN = FOLDER / "pictures.md"
_HEIGHT_MAX = 1_500
_COLOURS = 256

_HEAD = """# Pictures of the console

Every page as a browser shows it, in light and dark, on a wide screen and on a telephone. `make screenshots` makes them
anew: a shop in the middle of its day, on a clock that stands still.
"""


def keep(page: Page, name: str, *, scheme: str, width: int) -> None:
    """Write what is seen as a small picture into the folder ``PICTURES``, if pictures are wanted."""
    folder = os.environ.get("PICTURES")
    if folder:
        whole = Image.open(BytesIO(page.screenshot(full_page=True, animations="disabled"))).convert("RGB")
        shown = whole.crop((0, 0, whole.width, min(whole.height, _HEIGHT_MAX)))
        few = shown.quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        few.save(Path(folder) / file_of(name, scheme=scheme, width=width), optimize=True)


def file_of(name: str, *, scheme: str, width: int) -> str:
    """Return the name of the file that has a picture."""
    return f"{name}-{scheme}-{width}.png"


def page_of_pictures() -> str:
    """Return the page that shows all of them."""
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
