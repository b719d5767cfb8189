"""Write the tables of options in docs/spark.md from the code: ``python scripts/spark_options.py``.

A test fails if they are outdated. A table is between ``<!-- options: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from veilmq.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, Option

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark.md"
TABLES = {"source": SOURCE_OPTIONS, "sink": SINK_OPTIONS}

_PLACE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(table: Sequence[Option]) -> str:
    """Return ``table`` in Markdown."""
    rows = ["| option | values | default | description |", "| --- | --- | --- | --- |"]
    for option in table:
        shown = option.shown
        if not shown and option.default is not None:
            shown = f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"
        rows.append(f"| `{option.name}` | {option.type.allowed} | {shown} | {option.doc} |")
    return "\n".join(rows) + "\n"


def written(text: str) -> str:
    """Return ``text`` with the tables as they are now."""
    return _PLACE.sub(lambda place: f"{place[1]}{page(TABLES[place[2]])}{place[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
