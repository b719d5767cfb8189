"""One request that is answered by a task of its own, because it takes many steps."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from veilmq.core.errors import InternalError, VeilmqError
from veilmq.core.ports import Done
from veilmq.wire.sqs.errors import SqsError

log = logging.getLogger(__name__)


class Answering:
    """A request on its way; a ``Pending``."""

    __slots__ = ("_task",)

    def __init__(self, work: Coroutine[Any, Any, Any], answer: Done, *, what: str) -> None:
        """Answer with what ``work`` returns, or the error that it raises; ``what`` names it where that is a defect."""
        self._task = asyncio.ensure_future(self._run(work, answer, what))

    async def _run(self, work: Coroutine[Any, Any, Any], answer: Done, what: str) -> None:
        try:
            result = await work
        except (VeilmqError, SqsError) as error:
            result = error
        except Exception:
            log.exception("%s failed", what)
            result = InternalError()
        answer(result)

    def withdraw(self) -> None:
        """Forget it: the client has gone."""
        self._task.cancel()

    def hurry(self) -> None:
        """Go on: it waits for nothing."""
