"""What both runners keep of a story: the receipts by name, and the check of an answer against the told one."""

from dataclasses import dataclass

from tests.stories.story import Handle, Item

NONSENSE = "nonsense"


@dataclass(frozen=True, slots=True)
class Got:
    """A message as a client got it; `first_ms` counts from the story's beginning."""

    body: str
    receipt: str
    count: int
    first_ms: int
    source: str | None


class Book:
    """The receipts of one story, and the ids of what was sent."""

    def __init__(self) -> None:
        """Begin with none."""
        self._receipts: dict[str, tuple[str, str]] = {}  # name → queue, text
        self._ids: dict[str, object] = {}  # body → message id

    def sent(self, body: str, message_id: object, duplicate_of: str | None) -> None:
        """Assert that the message is a new one, or that it was taken for the one with the body `duplicate_of`."""
        if duplicate_of is None:
            assert message_id not in self._ids.values(), f"{body} was taken for a duplicate"
            self._ids[body] = message_id
        else:
            assert message_id == self._ids[duplicate_of], f"{body} was not taken for {duplicate_of}"

    def check(self, queue: str, items: tuple[Item, ...], got: list[Got]) -> None:
        """Assert that the answer of `queue` holds exactly `items`, and note their receipts."""
        assert [(each.body, each.count) for each in got] == [(item.body, item.count) for item in items]
        for item, each in zip(items, got, strict=True):
            assert item.first_ms in (None, each.first_ms), f"{item.body} was first received at {each.first_ms} ms"
            assert item.source == each.source, f"{item.body} came from {each.source}"
            if item.again:
                assert (queue, each.receipt) == self._receipts[item.again], f"not the receipt {item.again}"
            if item.receipt:
                assert item.receipt not in self._receipts, f"two receipts called {item.receipt}"
                self._receipts[item.receipt] = (queue, each.receipt)

    def renew(self, name: str, receipt: str) -> None:
        """Let `name` be another receipt of the same receive, which a change has issued."""
        self._receipts[name] = (self._receipts[name][0], receipt)

    def find(self, handle: Handle) -> tuple[str, str]:
        """Return the queue to use a receipt on, and its text."""
        if handle.name == NONSENSE:
            assert handle.queue is not None, "say on which queue"
            return handle.queue, NONSENSE
        queue, text = self._receipts[handle.name]
        if handle.forged:
            text = text[:-1] + ("A" if text[-1] != "A" else "B")
        return handle.queue or queue, text
