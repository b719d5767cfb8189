"""A database of format 19, the last before scripts and schema became one, recorded with every feature in use.

The first line of the recording says what its tests have to know: receipts, what was counted, and when that was.
"""

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from tests.store.postgres_host import connected

_RECORDED = Path(__file__).with_name("format_19.sql.gz")


@cache
def recorded() -> tuple[dict[str, Any], str]:
    said, statements = gzip.decompress(_RECORDED.read_bytes()).decode().split("\n", 1)
    return json.loads(said.removeprefix("-- ")), statements


async def restore(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute(recorded()[1])
