"""The report's file: what is in it, and how large it is."""

import re

from tests.pipeline.made_report import KEYS, QUEUES, content, made_queues
from veilmq.pipeline.report import BYTES_MAX, page
from veilmq.pipeline.tune import DEFAULTS


def test_two_hundred_queues_are_one_small_file() -> None:
    """The worst first; where there is no room for all reasons of keys, those that lose most have them."""
    queues = made_queues(QUEUES)
    text = page(queues, title="Timeouts & more", at_ms=0, options=DEFAULTS)
    assert len(text.encode()) <= BYTES_MAX == 600_000
    assert not re.search(r"https?:|<link|@import|<img|<script src", text)
    assert "<title>Timeouts &amp; more</title>" in text
    found = content(text)["queues"]
    assert [each["lost"] for each in found] == sorted((each["lost"] for each in queues), reverse=True)
    assert sum(len(each["keys"]) for each in found) == QUEUES * KEYS
    assert all(each["row"][-1] for each in found)
    with_reasons = [all(row[-1] for row in each["keys"]) for each in found]
    assert with_reasons == sorted(with_reasons, reverse=True)
    assert with_reasons[0]
