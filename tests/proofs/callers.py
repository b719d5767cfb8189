"""Threads that call a server again and again, also while it is killed, until they are told to stop."""

import random
import threading
import time
from collections.abc import Callable, Sequence

from tests.proofs.sqs_caller import NodesCaller, SqsCaller, Unanswered

PATIENCE_S = 60
PAUSE_S = 0.02

Step = Callable[[SqsCaller, random.Random, int], None]
"""What a thread does each time, with a caller and a chance of its own, and a number that no other step has."""


class Callers:
    """A thread for each of `steps`, all on one queue; a step without an answer is given up, and the next one begins."""

    def __init__(self, ports: Sequence[int], queue: str, steps: Sequence[Step], *, seed: int) -> None:
        """Start nothing yet; each request goes to any of `ports`."""
        self._errors: list[BaseException] = []
        self._ports = ports
        self._queue = queue
        self._seed = seed
        self._stop = threading.Event()
        self._many = len(steps)
        self._threads = [threading.Thread(target=self._run, args=each) for each in enumerate(steps)]

    def __enter__(self) -> "Callers":
        """Start all."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all, and wait for their end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert self._errors == []

    def until(self, condition: Callable[[], object]) -> None:
        """Let them call until `condition()` is true."""
        give_up_at_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up_at_s, "they did not come so far"
            time.sleep(PAUSE_S)

    def _run(self, place: int, step: Step) -> None:
        chance, number = random.Random(self._seed + place), place
        caller = NodesCaller(self._ports, self._queue, chance)
        try:
            while not self._stop.is_set():
                number += self._many
                try:
                    step(caller, chance, number)
                except Unanswered:
                    time.sleep(PAUSE_S)
        except BaseException as error:
            self._errors.append(error)
            raise
        finally:
            caller.close()
