"""Playing a story: one step after the other, and after each the counters of every queue."""

from typing import Any, Protocol

from tests.stories.story import Counts, Drop, Queue, Story


class Teller(Protocol):
    """Something that executes steps."""

    def tell(self, action: Any) -> None:
        """Execute one step."""

    def counts(self, queue: str) -> Counts:
        """Return the counters of a queue."""

    def finish(self) -> None:
        """End the story."""


def play(told: Story, teller: Teller) -> None:
    """Tell a story: each step does what it says, and every counter of every queue is as told after it."""
    queues: list[str] = []
    for number, step in enumerate(told.steps, start=1):
        try:
            teller.tell(step.action)
            if isinstance(step.action, Queue) and not step.action.too_soon:
                queues.append(step.action.queue)
            elif isinstance(step.action, Drop):
                queues.remove(step.action.queue)
            assert tuple(teller.counts(queue) for queue in queues) == step.counts
        except Exception as error:
            error.add_note(f"in step {number}: {step.text}")
            raise
    teller.finish()
