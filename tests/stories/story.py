"""The language of the stories in docs/lifecycle.md: each line is a step and the counters after it.

`read` parses a fenced block into `Step` values. Runners execute them: one on an engine, others over HTTP.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"
UNITS_MS = {"ms": 1, "s": 1_000, "h": 3_600_000}
STATES = ("live", "expired", "earlier", "superseded", "gone", "invalid")

Settings = dict[str, int | bool | str]
Forms = Mapping[str, str]  # verb → regular expression of its line, with a named group for each part
Counts = tuple[int, int, int]  # visible, in flight, delayed


class StoryError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Item:
    """An expected message of a reply; `receipt` names its receipt, `first_ms` counts from the start of the story.

    `again` names an earlier receipt that the reply repeats, `source` the queue of a dead letter.
    """

    body: str
    receipt: str | None
    count: int
    first_ms: int | None
    again: str | None = None
    source: str | None = None


class Action(SimpleNamespace):
    """The `verb` of a step, and the named groups of its form, parsed by `READ`; `None` if omitted.

    - `queue`, `set`: `settings`; `queue`, `purge`: whether they are tried `too_soon`
    - `send`: `bodies`, one message each; `duplicate_of` is the body of the message that the reply names instead
    - `receive`, `answer`: `items` of the whole reply, `None` if it is lost, or `without` a reply and why
    - `delete`, `change`: the name of a `receipt`, maybe `forged`, used on another `queue`, and its `state`
    - `poll`: a receive that waits for `wait_s`, by default as long as the queue is set to
    """


@dataclass(frozen=True, slots=True)
class Step:
    """One line: an action, and the counters of each queue, in order of creation, after it.

    `sqs_only` is why SMQ lacks the action, or empty.
    """

    text: str
    action: Action
    counts: tuple[Counts, ...]
    sqs_only: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """A fenced block, the heading above it, and the settings of its `server`, which follow the word `story`."""

    title: str
    steps: tuple[Step, ...]
    server: tuple[tuple[str, str], ...] = ()


_NAME = r"(?P<queue>\w+)"
DURATION = r"\d+ (?:ms|s|h)"
_GROUP = r"(?: group (?P<group>\w+))?(?: dedup (?P<dedup_id>\w+))?"
_DUPLICATE = r"(?: -> duplicate of (?P<duplicate_of>\w+))?"
_TIMEOUT = rf"(?: timeout (?P<timeout_s>{DURATION}))?"
_HANDLE = r"(?P<forged>forged )?(?P<receipt>\w+)(?: on (?P<queue>\w+))?"
_STATE = "|".join(STATES)


def by_verb(forms: list[str]) -> dict[str, str]:
    return {form.partition(" ")[0]: form for form in forms}


_FORMS = by_verb(
    [
        rf"queue {_NAME}(?P<settings>(?: \w+=\w+)*)(?P<too_soon> -> too soon)?",
        rf"set {_NAME}(?P<settings>(?: \w+=\w+)+)",
        rf"send {_NAME} (?P<bodies>\w+(?: to \w+)?){_GROUP}(?: delay (?P<delay_s>{DURATION}))?{_DUPLICATE}",
        rf"receive {_NAME}(?: up to (?P<count>\d+))?{_TIMEOUT}(?: attempt (?P<attempt>\w+))? -> (?:lost|(?P<items>.+))",
        rf"delete {_HANDLE} -> (?P<state>{_STATE})",
        rf"change {_HANDLE} (?P<timeout_s>{DURATION}) -> (?P<state>{_STATE}|too long)",
        rf"wait (?P<time_ms>{DURATION})",
        rf"purge {_NAME}(?P<too_soon> -> too soon)?",
        rf"drop {_NAME}",
        rf"poll {_NAME}(?: (?P<wait_s>{DURATION}))?{_TIMEOUT} as (?P<poll>\w+)",
        r"answer (?P<poll>\w+) -> (?:(?P<without>not yet|no queue)|(?P<items>.+))",
        r"hang up (?P<poll>\w+)",
    ]
)
_ITEM = re.compile(
    rf"(?P<body>\w+)(?: as (?P<receipt>\w+)| again (?P<again>\w+))?(?: count (?P<count>\d+))?"
    rf"(?: first (?P<first>{DURATION}))?(?: from (?P<source>\w+))?"
)
_SQS_ONLY = "SQS: "
_RANGE = re.compile(r"(?P<stem>[a-z]+)(?P<first>\d+) to (?P=stem)(?P<last>\d+)")
_WORDS: dict[str, bool] = {"true": True, "false": False}


def stories(page: str, more: Forms | None = None) -> list[Story]:
    """Return the stories of a Markdown page; `more` has further verbs. Raises `StoryError` for an invalid line."""
    found: list[Story] = []
    title = ""
    server: list[str] = []
    block: list[str] | None = None
    for line in page.splitlines():
        if block is None:
            if line.startswith("#"):
                title = line.lstrip("# ")
            elif line.startswith("```") and "story" in line:
                server = line.partition("story")[2].split()
                block = []
        elif line == "```":
            given = tuple((name, value) for name, _, value in (word.partition("=") for word in server))
            found.append(Story(title=title, steps=tuple(read(block, more)), server=given))
            block = None
        else:
            block.append(line)
    if block is not None:
        raise StoryError(f"the story under “{title}” is not terminated")
    return found


def read(lines: list[str], more: Forms | None = None) -> Iterator[Step]:
    for line in lines:
        text, bar, after = (part.strip() for part in line.partition("|"))
        if not bar:
            raise StoryError(f"no counters behind a bar: {line!r}")
        counters, _, mark = (part.strip() for part in after.partition("|"))
        if mark and not mark.startswith(_SQS_ONLY):
            raise StoryError(f"not a mark behind the counters: {mark!r}")
        yield Step(text, _action(text, more or {}), _counts(counters), mark.removeprefix(_SQS_ONLY))


def _counts(text: str) -> tuple[Counts, ...]:
    if text == "none":
        return ()
    groups = [group.split() for group in text.split("/")]
    if not all(len(group) == 3 and all(word.isdecimal() for word in group) for group in groups):
        raise StoryError(f"not counters (visible, in flight, delayed of each queue): {text!r}")
    return tuple((int(visible), int(in_flight), int(delayed)) for visible, in_flight, delayed in groups)


def _action(text: str, more: Forms) -> Action:
    verb = text.partition(" ")[0]
    form = more.get(verb) or _FORMS.get(verb)
    match = re.fullmatch(form, text) if form else None
    if match is None:
        raise StoryError(f"not a step: {text!r}")
    parts = {name: word if word is None else READ.get(name, str)(word) for name, word in match.groupdict().items()}
    return Action(verb=verb, **parts)


def _duration_ms(text: str) -> int:
    number, unit = text.split()
    return int(number) * UNITS_MS[unit]


def _seconds(text: str) -> int:
    time_ms = _duration_ms(text)
    if time_ms % 1_000:
        raise StoryError(f"clients use whole seconds: {text!r}")
    return time_ms // 1_000


def _settings(text: str) -> Settings:
    words = (word.split("=") for word in text.split())
    return {name: int(value) if value.isdecimal() else _WORDS.get(value, value) for name, value in words}


def _items(text: str) -> tuple[Item, ...]:
    if text == "nothing":
        return ()
    return tuple(_item(body) for part in text.split(", ") for body in _row(part))


def _row(text: str) -> list[str]:
    """Return `a1`, `a2`, `a3` for `a1 to a3`, and anything else as it is."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    return [f"{match['stem']}{number}" for number in range(int(match["first"]), int(match["last"]) + 1)]


def _bodies(text: str) -> list[str]:
    found = _row(text)
    if " to " in text and len(found) < 2:
        raise StoryError(f"not a range of bodies: {text}")
    return found


def _item(text: str) -> Item:
    match = _ITEM.fullmatch(text)
    if match is None:
        raise StoryError(f"not a message of a reply: {text!r}")
    return Item(
        body=match["body"],
        receipt=match["receipt"],
        count=int(match["count"] or 1),
        first_ms=None if match["first"] is None else _duration_ms(match["first"]),
        again=match["again"],
        source=match["source"],
    )


READ: dict[str, Callable[[str], Any]] = {
    "bodies": _bodies,
    "items": _items,
    "settings": _settings,
    "time_ms": _duration_ms,
    **dict.fromkeys(("delay_s", "timeout_s", "wait_s", "hold_s", "lease_s"), _seconds),
    **dict.fromkeys(("count", "number", "epoch", "shard", "messages", "shards", "messages_max", "shard_messages"), int),
    **dict.fromkeys(("forged", "too_soon", "again", "takeover"), bool),
}
"""Part of a line → its parser; other parts are words."""
NONSENSE = "nonsense"


@dataclass(frozen=True, slots=True)
class ReceivedItem:
    """A received message; `first_ms` counts from the start of the story."""

    body: str
    receipt: str
    count: int
    first_ms: int
    source: str | None


class StoryState:
    """The receipts of a story by name, and the ids of its messages."""

    def __init__(self) -> None:
        self._receipts: dict[str, tuple[str, str]] = {}  # name → queue, text
        self._ids: dict[str, object] = {}  # body → message id

    def sent(self, body: str, message_id: object, duplicate_of: str | None) -> None:
        """Assert that the message is new, or a duplicate of the one with the body `duplicate_of`."""
        if duplicate_of is None:
            assert message_id not in self._ids.values(), f"{body} was a duplicate"
            self._ids[body] = message_id
        else:
            assert message_id == self._ids[duplicate_of], f"{body} was not a duplicate of {duplicate_of}"

    def check(self, queue: str, items: tuple[Item, ...], got: list[ReceivedItem]) -> None:
        """Assert that the reply of `queue` has exactly `items`, and store their receipts."""
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
        self._receipts[name] = (self._receipts[name][0], receipt)

    def find(self, action: Action) -> tuple[str, str]:
        """Return the queue and the text of the receipt of a step."""
        if action.receipt == NONSENSE:
            assert action.queue is not None, "a queue is required"
            return action.queue, NONSENSE
        queue, text = self._receipts[action.receipt]
        if action.forged:
            text = text[:-1] + ("A" if text[-1] != "A" else "B")
        return action.queue or queue, text


class Runner:
    """Execute the steps of a story, each by the method of its verb."""

    def run(self, action: Action) -> None:
        getattr(self, f"run_{action.verb}")(action)

    def counts(self, queue: str) -> Counts:
        raise NotImplementedError

    def finish(self) -> None:
        """End the story."""


def play(story: Story, runner: Runner) -> None:
    queues: list[str] = []
    for number, step in enumerate(story.steps, start=1):
        try:
            runner.run(step.action)
            if step.action.verb == "queue" and not step.action.too_soon:
                queues.append(step.action.queue)
            elif step.action.verb == "drop":
                queues.remove(step.action.queue)
            assert tuple(runner.counts(queue) for queue in queues) == step.counts
        except Exception as error:
            error.add_note(f"in step {number}: {step.text}")
            raise
    runner.finish()
