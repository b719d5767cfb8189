"""What a queue's owner is shown: its settings, and how many messages are in which state."""

from dataclasses import dataclass

from veilmq.core.settings import QueueSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """One queue at one instant; ``created_at_ms`` and ``modified_at_ms`` are exact to the second."""

    queue: str
    url: str
    settings: QueueSettings
    visible: int
    in_flight: int
    delayed: int
    created_at_ms: int
    modified_at_ms: int
