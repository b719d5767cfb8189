"""What the event log has to know at the end of a receipt, packed into one number: the column ``log`` of leases.

``waited_ms (29 bits) | extensions (16) | batch position (8) | batch size (8) | closed (1) | logged (1)``. The number of
a lease in a queue without a log is 0. What is rare stands high, so that most numbers take four bytes on the disk.
"""

LOGGED = 1
CLOSED = 2
"""The end of the receipt is recorded: the lease lives on where the message was released, or a late delete refused."""
_STATE = LOGGED | CLOSED
_SIZE_AT, _POSITION_AT, _EXTENSIONS_AT, _WAITED_AT = 2, 10, 18, 34
_BYTE = 0xFF
_RARE = 1 << _EXTENSIONS_AT  # from here on there are extensions, or a wait
_EXTENSIONS_MAX = 0xFFFF
_WAITED_MAX = (1 << 29) - 1


Held = tuple[int, int, int, int]
"""The same as values: how often the deadline was moved, size of the batch, place in it, how long the receive waited."""


def begun(batch_size: int, waited_ms: int) -> int:
    """Return the number of the first of the leases that a receive has just begun."""
    return LOGGED | min(batch_size, _BYTE) << _SIZE_AT | min(waited_ms, _WAITED_MAX) << _WAITED_AT


def placed(begun: int, batch_position: int) -> int:
    """Return the number of another one of them, by the first one's."""
    return begun | min(batch_position, _BYTE) << _POSITION_AT


def is_open(log: int) -> bool:
    """Tell whether the receipt is logged and its end not recorded yet."""
    return log & _STATE == LOGGED


def extended(log: int) -> int:
    """Return the number after one more move of the deadline."""
    is_most = log >> _EXTENSIONS_AT & _EXTENSIONS_MAX == _EXTENSIONS_MAX
    return log if not log or is_most else log + (1 << _EXTENSIONS_AT)


def read(log: int) -> Held:
    """Return what the number says."""
    size, position = log >> _SIZE_AT & _BYTE, log >> _POSITION_AT & _BYTE
    if log < _RARE:
        return 0, size, position, 0
    return log >> _EXTENSIONS_AT & _EXTENSIONS_MAX, size, position, log >> _WAITED_AT
