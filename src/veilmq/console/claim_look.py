"""Sources and writers of queues, asked for as anybody may ask."""

from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from veilmq.console.asking import Refused
from veilmq.console.visit import Visit
from veilmq.core.claims import SourceView, WriterView


class Readers(NamedTuple):
    """Who reads a queue by claims, and who writes to it by publications; ``is_hidden`` where one may not see either."""

    queue: str
    sources: list[SourceView]
    writers: list[WriterView]
    is_hidden: bool = False


async def readers(visit: Visit, queue: str) -> Readers:
    """Return who reads and writes ``queue``; raises ``Refused`` for anything but a lack of rights."""
    sources = await _listed(visit, f"/v1/claims/{quote(queue, safe='/@')}", "sources")
    writers = await _listed(visit, f"/v1/publications/{quote(queue, safe='/@')}", "writers")
    return Readers(
        queue,
        msgspec.convert(sources or [], list[SourceView]),
        msgspec.convert(writers or [], list[WriterView]),
        is_hidden=sources is None and writers is None,
    )


async def source_of(visit: Visit, name: str) -> SourceView | None:
    """Return the source of this name of the queue that the path names, ``None`` for none."""
    sources = await _listed(visit, f"/v1/claims/{quote(visit.queue, safe='/@')}", "sources")
    found = msgspec.convert(sources or [], list[SourceView])
    return next((source for source in found if source.source == name), None)


async def _listed(visit: Visit, path: str, member: str) -> list[Any] | None:
    """Return a list of our API, ``None`` where the caller may not see it."""
    try:
        answer = await visit.api("GET", path)
    except Refused as refused:
        if not refused.is_denied:
            raise
        return None
    found: list[Any] = answer[member]
    return found
