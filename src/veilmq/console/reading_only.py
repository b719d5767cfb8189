"""The way to the queues of a page that is only looked at: it changes nothing, whoever wrote the page."""

from collections.abc import Mapping

from veilmq.console.asking import Answer, Ask
from veilmq.console.auditing import change_of
from veilmq.wire.sqs.callers import Caller


class ReadingOnly:
    """An ``Ask`` for requests that may change nothing: a page that is only looked at has no way to do it."""

    def __init__(self, ask: Ask) -> None:
        """``ask`` carries out what only reads."""
        self._ask = ask

    async def __call__(
        self,
        method: bytes,
        target: bytes,
        headers: Mapping[bytes, bytes],
        body: bytes,
        *,
        caller: Caller | None,
        peer: str | None,
    ) -> Answer:
        """Answer; raises ``PermissionError`` for what may change anything, a defect of the page."""
        if change_of(method, target, headers, b"", account="") is not None:
            raise PermissionError(f"A page that is only looked at asked for a change: {method!r} {target!r}.")
        return await self._ask(method, target, headers, body, caller=caller, peer=peer)
