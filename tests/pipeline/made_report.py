"""Random reports, and the data in a page."""

import base64
import gzip
import json
import random
import re
from typing import Any

QUEUES, KEYS = 200, 40
CHARACTERS = "".join(map(chr, [*range(35, 92), *range(93, 127)]))
REASON = (
    "keep 30 s: {} s would not surely cost less ({} s a message, now {} s); not identifiable: {} receipts are at risk "
    "where p99 lies, near {} s, and it takes 50; {} % of the work outlives {} s, and {} % of the receipts wait so long "
    "after a crash"
)


def content(text: str) -> Any:
    """Return the data in a page."""
    packed = re.findall(r'<script type="text/plain" id="data">([^<]*)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed[0])))


class RandomReport:
    """Random queues in the format of the report, as varied as real ones."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def queue(self, number: int) -> dict[str, Any]:
        lines = [self._falling(41) for _ in range(3)]
        return {
            "name": f"team-{number % 17}-queue-{number:03}",
            "lost": 0.0 if number % 3 else self._number(50_000),
            "doubled": self._number(500),
            "row": self._row(None),
            "keys": [self._row(f"Type{key:02}") for key in range(KEYS)],
            "left_out": 0,
            "work": {"x": [0.01, 90.0, 120.0], "lines": lines, "keys": [self._falling(21) for _ in range(6)]},
            "cost": {"x": [1, 600], "y": [0.01, self._number(90)], "lines": [self._falling(41) for _ in range(4)]},
            "days": {
                "days": [f"0{1 + day // 28}-{1 + day % 28:02}" for day in range(60)],
                "y": self._number(1),
                "lines": [self._noise(60), self._noise(60)],
            },
            "waits": {
                "first": 490_000, "step": 4, "places": list(range(84)), "y": [0.01, self._number(90)],
                "lines": [self._noise(84), self._noise(84)],
            },
        }  # fmt: skip

    def _row(self, key: str | None) -> list[Any]:
        number, chance = self._number, self._chance
        reason = re.sub("{}", lambda _: str(number(100)), REASON)
        count = round(number(90_000))
        wanted = None if chance.random() < 0.5 else chance.randint(1, 600)
        change = wanted is not None
        rates = [number(0.1), number(0.1)]
        return [
            key, count, count - round(number(300)), number(60), None, *rates, 30, wanted, None, change, not change,
            number(1), chance.choice(["high", "medium", "low"]), reason,
        ]  # fmt: skip

    def _number(self, most: float) -> float:
        return float(f"{self._chance.uniform(0, most):.3g}")

    def _falling(self, points: int) -> str:
        return "".join(sorted((self._chance.choice(CHARACTERS) for _ in range(points)), reverse=True))

    def _noise(self, points: int) -> str:
        level, found = 45.0, ""
        for _ in range(points):
            level = min(max(level + self._chance.gauss(0, 6), 0), 90)
            found += CHARACTERS[int(level)]
        return found


def made_queues(queues: int) -> list[dict[str, Any]]:
    return [RandomReport(number).queue(number) for number in range(queues)]
