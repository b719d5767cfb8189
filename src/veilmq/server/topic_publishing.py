"""Publishing to topics: counts, and says in the log, which subscriptions got nothing."""

import logging
from typing import Any

from veilmq.core.ports import Clock, Done, Engine
from veilmq.core.topics import PublishedMessage, PublishToTopic
from veilmq.server.seldom import Seldom
from veilmq.server.topic_counts import TopicCounts

log = logging.getLogger(__name__)


class TopicPublishing:
    """Has messages published."""

    def __init__(self, *, engine: Engine, clock: Clock, counts: TopicCounts) -> None:
        """Use ``engine``, on its event loop."""
        self._engine = engine
        self._counts = counts
        self._seldom = Seldom(clock)

    def ask(self, command: PublishToTopic, wait_s: int | None, answer: Done) -> "OneMessage":
        """Publish; ``answer`` is called once."""

        def done(result: Any) -> None:
            if isinstance(result, PublishedMessage) and result.undeliverable:
                self._tell(command.topic, result)
            answer(result)

        self._engine.submit(command, done)
        return OneMessage(self._engine, done)

    def _tell(self, topic: str, published: PublishedMessage) -> None:
        self._counts.undeliverable += len(published.undeliverable)
        for name, reason in published.undeliverable:
            if self._seldom.due((topic, name, type(reason))):
                log.warning(
                    "message %s of %s did not come to subscription %s: %s",
                    published.id.hex().upper(),
                    topic,
                    name,
                    reason,
                )


class OneMessage:
    """One request on its way."""

    __slots__ = ("_done", "_engine")

    def __init__(self, engine: Engine, done: Done) -> None:
        """``done`` is what the engine answers to."""
        self._engine = engine
        self._done = done

    def withdraw(self) -> None:
        """Forget it: what is not begun does not happen."""
        self._engine.withdraw(self._done)

    def hurry(self) -> None:
        """Go on: it does not wait for anything."""
