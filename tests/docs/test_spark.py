"""The tables of options on the page of Spark are written from the code."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_are_what_the_script_writes() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "spark_options.py"))
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert script["written"](text) == text
    assert [name for name in script["TABLES"] if f"<!-- options: {name} -->" not in text] == []
