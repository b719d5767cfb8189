"""One attempt to push one message: whether its receiver may be asked, the request, and what he said in time."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from functools import partial

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock
from veilmq.core.results import ReceivedMessage
from veilmq.core.topic_errors import EndpointRefused
from veilmq.core.topics import Subscription
from veilmq.server.pushing.guard import Guard
from veilmq.server.pushing.http_post import NoAnswer, post
from veilmq.wire.smq.topics import Sign, push_request

log = logging.getLogger(__name__)

ANSWER_S_MAX = 5
"""How long a receiver has to accept a message (SMQ reference, section 9); to find and reach it is a part of that."""

_ACCEPTED = range(200, 300)


class Attempts:
    """What all attempts of a server share."""

    def __init__(
        self,
        *,
        guard: Guard,
        sign: Sign,
        certificate_url: str,
        clock: Clock,
        wall_s: Callable[[], float],
    ) -> None:
        """``clock`` ends attempts; ``wall_s`` is the raw wall clock, which receivers compare with theirs."""
        self._guard = guard
        self._sign = sign
        self._certificate_url = certificate_url
        self._clock = clock
        self._wall_s = wall_s
        self._tls = ssl.create_default_context()
        self._signer = ThreadPoolExecutor(1, thread_name_prefix="veilmq-push-signer")  # a signature takes a millisecond

    async def attempt(self, subscription: Subscription, message: ReceivedMessage) -> str:
        """Return why the message was not accepted, for the log; an empty text when it was.

        The URL is no part of it: it may hold a secret, by which its receiver knows who may push.
        """
        posting = asyncio.ensure_future(self._post(subscription, message))
        timer = self._clock.call_at(self._clock.now_ms() + ANSWER_S_MAX * SECOND_MS, posting.cancel)
        try:
            await asyncio.wait({posting})
        finally:
            timer.cancel()
            posting.cancel()
        if posting.cancelled():
            return f"no answer within {ANSWER_S_MAX} s"
        return posting.result()

    async def _post(self, subscription: Subscription, message: ReceivedMessage) -> str:
        try:
            target = await self._guard.admit(subscription.push_url)
            write = partial(
                push_request,
                subscription,
                message,
                target.url,
                date=formatdate(self._wall_s(), usegmt=True),
                certificate_url=self._certificate_url,
                sign=self._sign,
            )
            request = await asyncio.get_running_loop().run_in_executor(self._signer, write)
            status = await post(target, request, tls=self._tls)
        except EndpointRefused as error:
            return error.why
        except NoAnswer as error:
            return str(error)
        except Exception:
            log.exception("a push of %s of %s failed for a reason of our own", subscription.name, subscription.topic)
            return "a defect of this server"
        return "" if status in _ACCEPTED else f"status {status}"
