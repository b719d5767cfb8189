"""Positions: where a message stands, in one 63-bit number that is also its row id.

``lane (22 bits) | delayed (1 bit) | sequence (40 bits)``; ``docs/decisions/0002-positions.md`` has the budget. Messages
sent with a delay take positions of their own, so that the fresh run never has to step over hidden ones.
"""

SEQUENCE_BITS = 40
LANE_SHIFT = SEQUENCE_BITS + 1
LANES_MAX = 1 << 22
SEQUENCES_MAX = 1 << SEQUENCE_BITS


def direct_start(lane: int) -> int:
    """Return the first position of the lane's messages sent without delay."""
    return lane << LANE_SHIFT


def delayed_start(lane: int) -> int:
    """Return the first position of the lane's messages sent with a delay."""
    return (lane << LANE_SHIFT) | SEQUENCES_MAX


def lane_of(position: int) -> int:
    """Return the number of the lane that ``position`` lies in."""
    return position >> LANE_SHIFT
