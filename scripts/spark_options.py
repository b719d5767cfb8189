"""Write the tables of options in docs/spark.md from the code: ``python scripts/spark_options.py``.

A test fails when it was forgotten. A table stands between ``<!-- options: NAME -->`` and ``<!-- end -->``.
"""

import re
from pathlib import Path

from veilmq.spark.options import SINK_OPTIONS, SOURCE_OPTIONS, page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "spark.md"
TABLES = {"source": SOURCE_OPTIONS, "sink": SINK_OPTIONS}

_PLACE = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def written(text: str) -> str:
    """Return ``text`` with the tables as they are now."""
    return _PLACE.sub(lambda place: f"{place[1]}{page(TABLES[place[2]])}{place[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
