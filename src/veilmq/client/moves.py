"""What a client is told about a move of dead letters."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One move; ``handle`` cancels it as long as it is ``running`` (or it is completed, cancelled, failed).

    ``destination`` is ``None`` for a move back to where each message came from, ``moves_per_s_max`` for one as fast as
    it goes. ``failure`` says why it failed.
    """

    handle: str | None
    status: str
    destination: str | None
    moves_per_s_max: int | None
    messages_moved: int
    messages_to_move: int
    started_at_ms: int
    failure: str | None
