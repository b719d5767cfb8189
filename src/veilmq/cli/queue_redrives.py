"""``veilmq queue redrives``."""

from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Json, Queue
from veilmq.cli.printing import instant, print_aligned, print_json
from veilmq.client import Move
from veilmq.client.transport import DEFAULT_ENDPOINT


def redrives(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print the latest moves out of a dead-letter queue, newest first."""
    with connect(endpoint) as client:
        moves = client.moves(queue)
    if json:
        print_json(moves)
        return
    for place, move in enumerate(moves):
        if place:
            print()
        print_aligned(_rows(move))


def _rows(move: Move) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("status", move.status),
        ("moved", f"{move.messages_moved} of {move.messages_to_move}"),
        ("to", move.destination or "where they came from"),
        ("rate", f"{move.moves_per_s_max} a second" if move.moves_per_s_max else "all at once"),
        ("started", instant(move.started_at_ms)),
    ]
    return [*rows, ("failure", move.failure)] if move.failure else rows
