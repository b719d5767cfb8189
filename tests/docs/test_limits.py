"""The page of limits is written from the file of limits."""

import runpy
from pathlib import Path

from veilmq.core import limits

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_script_writes() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "limits_page.py"))
    assert (ROOT / "docs" / "limits.md").read_text(encoding="utf-8") == script["page"]()


def test_every_limit_is_on_the_page() -> None:
    text = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    names = [name for name in vars(limits) if name.isupper() and name != "SECOND_MS"]
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in text] == []
