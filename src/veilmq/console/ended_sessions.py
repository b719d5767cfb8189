"""Sessions that were ended by signing out, remembered until their cookies are too old anyway.

A cookie says by itself who is signed in, so a copy of it would hold after its browser has forgotten it. What is
remembered is bounded for each key, so that nobody who signs in and out without end can have the sessions of others
forgotten, or ended: of a key with too many, all end that had begun by then.
"""

from datetime import datetime

OF_A_KEY_MAX = 256
"""How many of a key are remembered one by one."""


class EndedSessions:
    """What this process knows of them. Instants are seconds of the wall clock."""

    def __init__(self, *, session_s_max: int) -> None:
        """``session_s_max`` is after how many seconds a cookie is too old."""
        self._session_s_max = session_s_max
        self._one_by_one: dict[str, dict[str, float]] = {}
        self._all_by_s: dict[str, float] = {}

    def __len__(self) -> int:
        """Return how many are remembered one by one."""
        return sum(len(of_key) for of_key in self._one_by_one.values())

    def add(self, key_id: str, token: str, now_s: float) -> None:
        """Remember the session of ``key_id`` with ``token``."""
        self._forget(now_s - self._session_s_max)
        of_key = self._one_by_one.setdefault(key_id, {})
        of_key[token] = now_s
        if len(of_key) > OF_A_KEY_MAX:
            del self._one_by_one[key_id]
            self._all_by_s[key_id] = now_s

    def has(self, key_id: str, token: str, began_at: datetime) -> bool:
        """Tell whether that session, which began at ``began_at``, was ended."""
        if token in self._one_by_one.get(key_id, ()):
            return True
        all_by_s = self._all_by_s.get(key_id)
        return all_by_s is not None and began_at.timestamp() <= all_by_s

    def _forget(self, before_s: float) -> None:
        """Forget those that were ended before ``before_s``: they had begun still earlier."""
        for key_id, of_key in list(self._one_by_one.items()):
            kept = {token: ended_s for token, ended_s in of_key.items() if ended_s >= before_s}
            if kept:
                self._one_by_one[key_id] = kept
            else:
                del self._one_by_one[key_id]
        self._all_by_s = {key_id: by_s for key_id, by_s in self._all_by_s.items() if by_s >= before_s}
