"""Message groups: in the store a group is a number.

The number is a hash, so that a group needs no row of its own. Two groups that share one (of 2 to the power of 63) share
their order and their turn; nothing else comes of it.
"""

from functools import lru_cache
from hashlib import blake2b


@lru_cache(maxsize=16_384)  # senders name the same groups again and again
def key_of(group: str) -> int:
    """Return the number of the group of that name."""
    return int.from_bytes(blake2b(group.encode(), digest_size=8).digest()) >> 1
