"""The numbers of message groups in FIFO queues: a group has that of its first message, found by a hash of its name.

The janitor removes the numbers of groups without messages.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from veilmq.store.sqlite.statements import SQL

_REMEMBERED_MAX = 65_536
_FIRST: tuple[int, int] = (0, 0)


class GroupNumbers:
    """The numbers of one store, with a cache of those that were asked for lately."""

    def __init__(self, execute: Callable[..., Any], *, key: bytes) -> None:
        """``execute`` is that of the store's connection; ``key`` is the secret of the hashes."""
        self._execute = execute
        self.key = key
        self._swept_to = _FIRST
        self.forget()

    def forget(self) -> None:
        """Drop the cache."""
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, partition: int, name: str, seq: int) -> int:
        """Return the number of a group, which is ``seq`` if it has none yet: that of a message that is being stored."""
        number = self._numbers.get((partition, name))
        if number is None:
            if len(self._numbers) >= _REMEMBERED_MAX:
                self._numbers.clear()
            number = self.of_hash(partition, group_hash(self.key, name), seq)
            self._numbers[partition, name] = number
        return number

    def of_hash(self, partition: int, name_hash: int, seq: int) -> int:
        """Return the same of a group whose name is known by its hash."""
        row = self._execute(SQL["group_number"], (partition, name_hash)).fetchone()
        if row is None:
            self._execute(SQL["insert_group_number"], (partition, name_hash, seq))
        return seq if row is None else int(row[0])

    def sweep(self, count: int) -> bool:
        """Remove the numbers of groups without messages from a slice of all; tell whether to go on with the next one.

        At the end of all it rests: groups that come back at once would keep it busy.
        """
        rows = self._execute(SQL["group_numbers_behind"], (*self._swept_to, count)).fetchall()
        ended = [row[:2] for row in rows if not row[2]]
        for group in ended:
            self._execute(SQL["delete_group_number"], group)
        is_slice = len(rows) == count
        self._swept_to = rows[-1][:2] if is_slice else _FIRST
        if ended:
            self.forget()
        return is_slice and len(ended) * 2 > count


@lru_cache(maxsize=16_384)  # senders name the same groups again and again
def group_hash(key: bytes, group: str) -> int:
    """Return the hash of a group's name under the store's secret ``key``, so that no sender makes two equal."""
    return int.from_bytes(blake2b(group.encode(), key=key, digest_size=8).digest()) >> 1
