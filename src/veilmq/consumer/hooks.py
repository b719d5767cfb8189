"""What a program may watch: functions that are called as messages go by, and where their failures end."""

import logging
from collections.abc import Callable
from typing import Any

HOOKS = ("receive", "start", "settle", "renew", "suspect", "lost", "ending", "release")

Hook = Callable[..., Any]

_log = logging.getLogger("veilmq.consumer")


class Hooks:
    """Functions by what they watch."""

    def __init__(self) -> None:
        """Watch nothing."""
        self._hooks: dict[str, list[Hook]] = {}

    def add(self, name: str, hook: Hook) -> None:
        """Call ``hook`` at each ``name``; raises ``ValueError`` for a name that there is not."""
        if name not in HOOKS:
            raise ValueError(f"there is no hook {name!r}; there are {', '.join(HOOKS)}")
        self._hooks.setdefault(name, []).append(hook)

    def has(self, name: str) -> bool:
        """Tell whether anything watches ``name``."""
        return name in self._hooks

    def call(self, name: str, *arguments: object) -> None:
        """Call what watches ``name``; a hook that fails is logged, and harms nobody."""
        for hook in self._hooks.get(name, ()):
            try:
                hook(*arguments)
            except Exception:  # noqa: BLE001 - a hook may raise anything
                _log.exception("the hook %r for %r failed", hook, name)
