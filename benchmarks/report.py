"""The JSON file: machine, settings, every row with its ratios, and the raw results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.row import Row, Section


def document(
    sections: Sequence[Section], *, machine: Mapping[str, str | int], settings: Mapping[str, object]
) -> dict[str, object]:
    return {
        "machine": dict(machine),
        "settings": dict(settings),
        "sections": [
            {"name": section.name, "rows": [_row(row) for row in section.rows], "raw": section.raw}
            for section in sections
        ],
    }


def _row(row: Row) -> dict[str, object]:
    return {
        "figure": row.figure,
        "unit": row.unit,
        "values": dict(row.values),
        "of_ceiling": row.of_ceiling(),
        "over_peers": dict(row.over_peers()),
        "note": row.note,
    }


def write(content: Mapping[str, object], *, path: Path) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
