"""A queue's settings from a client's side, through veilmq's own API: every name, every setting, the widest ranges.

What SQS can say is said through a ``QueueClient`` as well; here are also a FIFO queue whose name does not end in
``.fifo``, names of up to 256 characters, and delays of up to seven days, as SMQ has them.
"""

from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from veilmq.client.api import QueueApi
from veilmq.client.status import QueueStatus
from veilmq.core.settings import SettingValue
from veilmq.wire.v1.queues import CreatedQueue, ShownQueue


class _Nothing(msgspec.Struct, frozen=True):
    """The answer that tells nothing."""


class Settings(QueueApi):
    """The settings of one queue, which need not be there yet."""

    noun = "queues"

    def create(
        self, settings: Mapping[str, SettingValue] | None = None, *, tags: Mapping[str, str] | None = None
    ) -> str:
        """Create the queue, or find it with the same settings (fields of ``QueueSettings``); answers its URL.

        Settings name other queues by their names. ``tags`` are those of a new queue. Raises ``ClientError`` and
        ``Unreachable``.
        """
        return self.post("create", {"settings": settings or {}, "tags": tags or {}}, CreatedQueue).url

    def show(self) -> QueueStatus:
        """Return the settings and the counters of the queue; raises ``ClientError`` and ``Unreachable``."""
        shown = self.get("show", {}, ShownQueue)
        return QueueStatus(
            queue=shown.queue.rpartition("/")[2],
            url=shown.url,
            settings=shown.settings,
            visible=shown.visible,
            in_flight=shown.in_flight,
            delayed=shown.delayed,
            created_at_ms=shown.created_at_ms,
            modified_at_ms=shown.modified_at_ms,
        )

    def set(self, settings: Mapping[str, SettingValue]) -> None:
        """Change the supplied settings; messages in flight keep their deadlines.

        Raises ``ClientError`` and ``Unreachable``.
        """
        self.post("set", settings, _Nothing)

    def _place(self) -> str:
        """Return account and name; a plain name is one of the caller's account, whether it is there or not."""
        return super()._place() if "/" in self._queue else f"-/{quote(self._queue)}"
