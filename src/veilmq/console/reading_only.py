"""The way to the queues of a page that is only looked at: it changes nothing, whoever wrote the page."""

from veilmq.console.asking import Answer, Ask, Asked
from veilmq.console.changes import change_of


class ReadingOnly:
    """An ``Ask`` for requests that may change nothing: a page that is only looked at has no way to do it."""

    def __init__(self, ask: Ask) -> None:
        """``ask`` carries out what only reads."""
        self._ask = ask

    async def __call__(self, asked: Asked) -> Answer:
        """Answer; raises ``PermissionError`` for what may change anything, a defect of the page."""
        if change_of(asked._replace(body=b""), account="") is not None:
            raise PermissionError(
                f"A page that is only looked at asked for a change: {asked.method!r} {asked.target!r}."
            )
        return await self._ask(asked)
