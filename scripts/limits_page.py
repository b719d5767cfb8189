"""Write docs/limits.md from core/limits.py: ``python scripts/limits_page.py``. A test fails when it was forgotten."""

import ast
from pathlib import Path

from veilmq.core import limits

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "veilmq" / "core" / "limits.py"
PAGE = ROOT / "docs" / "limits.md"

_HEAD = """# Limits

Written by `scripts/limits_page.py` from `src/veilmq/core/limits.py`; change it there. `_S` is in seconds, `_MS` in
milliseconds, `_BYTES` in bytes. A dash in the column *default* means that there is one value and nothing to choose.
"""


def page() -> str:
    """Return the page: one table for each commented section of the file, in its order."""
    parts = [_HEAD]
    for line in SOURCE.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            parts.append(
                f"\n## {line[2:].rstrip('.')}\n\n| limit | least | most | default |\n| --- | --- | --- | --- |\n"
            )
        elif (name := _assigned(line)) is not None and len(parts) > 1:
            parts.append(_row(name))
    return "".join(parts)


def _assigned(line: str) -> str | None:
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError):
        return None
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _row(name: str) -> str:
    value = getattr(limits, name)
    if isinstance(value, limits.Range):
        return f"| `{name}` | {value.minimum:,} | {value.maximum:,} | {value.default:,} |\n"
    return f"| `{name}` | | {value:,} | — |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
