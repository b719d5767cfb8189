"""The pictures of the documentation are there, shown and small (``make screenshots``)."""

import re

from tests.console.pictures import FOLDER, SHOWN

FILE_BYTES_MAX = 130_000
ALL_BYTES_MAX = 6_000_000
LINK = re.compile(r"\]\(([^)]+\.png)\)")


def test_each_picture_is_shown_and_each_that_is_shown_is_there() -> None:
    assert {path.name for path in FOLDER.glob("*.png")} == set(LINK.findall(SHOWN.read_text(encoding="utf-8")))


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.glob("*.png")}
    assert {name: size for name, size in sizes.items() if size > FILE_BYTES_MAX} == {}
    assert sum(sizes.values()) <= ALL_BYTES_MAX
