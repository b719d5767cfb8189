"""What clients know of the order in which a FIFO queue gave the messages of its groups, and whether that is one.

A message may be given when every earlier one of its group is deleted, or comes before it in the same answer. Whether a
delete that was not answered has happened nobody knows; so only one that nobody has asked for proves a violation.
"""

from threading import Lock


class GroupOrder:
    """The messages of all groups, each known by its group and its number there, from 0."""

    def __init__(self) -> None:
        """Nothing was given."""
        self.violations: list[str] = []
        self._delete_asked: dict[str, set[int]] = {}
        self._first_left: dict[str, int] = {}
        self._lock = Lock()

    def given(self, messages: list[tuple[str, int]]) -> None:
        """Note the messages of one answer, in its order."""
        with self._lock:
            before: dict[str, set[int]] = {}
            for group, number in messages:
                self._check(group, number, before.setdefault(group, set()))
                before[group].add(number)

    def _check(self, group: str, number: int, before: set[int]) -> None:
        gone = self._delete_asked.setdefault(group, set())
        first = self._first_left.get(group, 0)
        while first in gone:
            gone.discard(first)
            first += 1
        self._first_left[group] = first
        skipped = [each for each in range(first, number) if each not in gone and each not in before]
        if skipped:
            self.violations.append(f"{number} of {group} was given before {skipped[0]}")
        if any(each > number for each in before):
            self.violations.append(f"{number} of {group} was given behind a later one in the same answer")

    def delete_asked(self, group: str, number: int) -> None:
        """Note that a message may be gone from now on."""
        with self._lock:
            if number >= self._first_left.get(group, 0):
                self._delete_asked.setdefault(group, set()).add(number)
