"""The language of the stories in docs/lifecycle.md: each line is a step and the counters after it.

`read` turns a fenced block into `Step` values or says what is wrong with which line. What the steps mean is the
business of the runners: one drives an engine, the other a server over HTTP.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"
UNITS_MS = {"ms": 1, "s": 1_000, "h": 3_600_000}
STATES = ("live", "expired", "earlier", "superseded", "gone", "invalid")

Settings = dict[str, int | bool | str]

Forms = Mapping[str, tuple[str, Callable[[dict[str, str]], Any]]]
"""Verb → the form of its line, and what makes its action of it."""

Counts = tuple[int, int, int]
"""Visible, in flight, delayed."""


class StoryError(Exception):
    """A line that is not in the language, or a story that cannot be told."""


@dataclass(frozen=True, slots=True)
class Item:
    """A message that an answer holds; `receipt` names its receipt, `first_ms` counts from the story's beginning.

    `again` names an earlier receipt that this answer repeats; `source` the queue that a dead letter came from.
    """

    body: str
    receipt: str | None
    count: int
    first_ms: int | None
    again: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Handle:
    """A receipt as a step gives it: the one called `name`, perhaps damaged, used on `queue` if that is not its own."""

    name: str
    forged: bool
    queue: str | None


@dataclass(frozen=True, slots=True)
class Queue:
    """Create a queue, or try `too_soon` after one of that name was deleted."""

    queue: str
    settings: Settings
    too_soon: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Change the settings of a queue."""

    queue: str
    settings: Settings


@dataclass(frozen=True, slots=True)
class Send:
    """Send one message; `duplicate_of` is the body of the one that is answered in its place."""

    queue: str
    body: str
    delay_s: int | None
    group: str | None = None
    dedup_id: str | None = None
    duplicate_of: str | None = None


@dataclass(frozen=True, slots=True)
class SendMany:
    """Send several messages, one after the other."""

    sends: tuple[Send, ...]


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive; `items` is the whole answer, `None` when it is lost on its way."""

    queue: str
    count: int
    timeout_s: int | None
    items: tuple[Item, ...] | None
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete with a receipt that is in `state`."""

    handle: Handle
    state: str


@dataclass(frozen=True, slots=True)
class Change:
    """Change the deadline with a receipt that is in `state`, or by `too long` a time."""

    handle: Handle
    timeout_s: int
    state: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Let time pass."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class Purge:
    """Delete all messages of a queue, or try `too_soon` after the last time."""

    queue: str
    too_soon: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete a queue."""

    queue: str


@dataclass(frozen=True, slots=True)
class Poll:
    """Start a receive that waits for `wait_s`, `None`: as long as the queue says; it hides for `timeout_s`."""

    queue: str
    wait_s: int | None
    poll: str
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a poll was answered: items, `not yet` or `no queue`."""

    poll: str
    outcome: tuple[Item, ...] | str


@dataclass(frozen=True, slots=True)
class HangUp:
    """The client of a poll goes away."""

    poll: str


Action = Queue | Set | Send | SendMany | Receive | Delete | Change | Wait | Purge | Drop | Poll | Answer | HangUp


@dataclass(frozen=True, slots=True)
class Step:
    """One line: what happens, and the counters of every queue (in the order of their creation) after it.

    `sqs_only` is why SMQ cannot say it, empty where it can.
    """

    text: str
    action: Any
    counts: tuple[Counts, ...]
    sqs_only: str = ""


@dataclass(frozen=True, slots=True)
class Story:
    """A fenced block and the heading above it; `server` has the settings of its server, from behind `story`."""

    title: str
    steps: tuple[Step, ...]
    server: tuple[tuple[str, str], ...] = ()


_NAME = r"(?P<queue>\w+)"
_DURATION = r"\d+ (?:ms|s|h)"
_GROUP = r"(?: group (?P<group>\w+))?(?: dedup (?P<dedup>\w+))?"
_DUPLICATE = r"(?: -> duplicate of (?P<duplicate>\w+))?"
_ATTEMPT = r"(?: attempt (?P<attempt>\w+))?"
_HANDLE = r"(?P<forged>forged )?(?P<receipt>\w+)(?: on (?P<queue>\w+))?"
_FORMS = {
    form.partition(" ")[0]: re.compile(form)
    for form in [
        rf"queue {_NAME}(?P<settings>(?: \w+=\w+)*)(?P<too_soon> -> too soon)?",
        rf"set {_NAME}(?P<settings>(?: \w+=\w+)+)",
        rf"send {_NAME} (?P<body>\w+)(?: to (?P<last>\w+))?{_GROUP}(?: delay (?P<delay>{_DURATION}))?{_DUPLICATE}",
        rf"receive {_NAME}(?: up to (?P<count>\d+))?(?: timeout (?P<timeout>{_DURATION}))?{_ATTEMPT} -> (?P<items>.+)",
        rf"delete {_HANDLE} -> (?P<state>.+)",
        rf"change {_HANDLE} (?P<timeout>{_DURATION}) -> (?P<state>.+)",
        rf"wait (?P<time>{_DURATION})",
        rf"purge {_NAME}(?P<too_soon> -> too soon)?",
        rf"drop {_NAME}",
        rf"poll {_NAME}(?: (?P<wait>{_DURATION}))?(?: timeout (?P<timeout>{_DURATION}))? as (?P<poll>\w+)",
        r"answer (?P<poll>\w+) -> (?P<outcome>.+)",
        r"hang up (?P<poll>\w+)",
    ]
}
_ITEM = re.compile(
    rf"(?P<body>\w+)(?: as (?P<receipt>\w+)| again (?P<again>\w+))?(?: count (?P<count>\d+))?"
    rf"(?: first (?P<first>{_DURATION}))?(?: from (?P<source>\w+))?"
)
_SQS_ONLY = "SQS: "
_RANGE = re.compile(r"(?P<stem>[a-z]+)(?P<first>\d+) to (?P=stem)(?P<last>\d+)")
_WORDS: dict[str, bool] = {"true": True, "false": False}


def stories(page: str, more: Forms | None = None) -> list[Story]:
    """Return the stories of a Markdown page; raises `StoryError` for a line that is not in the language.

    `more` has further verbs, whose steps are the business of whoever adds them.
    """
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
        raise StoryError(f"the story under “{title}” has no end")
    return found


def read(lines: list[str], more: Forms | None = None) -> Iterator[Step]:
    for line in lines:
        text, bar, after = (part.strip() for part in line.partition("|"))
        if not bar:
            raise StoryError(f"no counters behind a bar: {line!r}")
        counters, _, mark = (part.strip() for part in after.partition("|"))
        yield Step(text=text, action=_action(text, more or {}), counts=_counts(counters), sqs_only=_sqs_only(mark))


def _sqs_only(mark: str) -> str:
    if mark and not mark.startswith(_SQS_ONLY):
        raise StoryError(f"not a mark behind the counters: {mark!r}")
    return mark.removeprefix(_SQS_ONLY)


def _counts(text: str) -> tuple[Counts, ...]:
    if text == "none":
        return ()
    groups = [group.split() for group in text.split("/")]
    if not all(len(group) == 3 and all(word.isdecimal() for word in group) for group in groups):
        raise StoryError(f"not counters (visible, in flight, delayed of each queue): {text!r}")
    return tuple((int(visible), int(in_flight), int(delayed)) for visible, in_flight, delayed in groups)


def _action(text: str, more: Forms) -> Any:
    verb = text.partition(" ")[0]
    form, make = more[verb] if verb in more else (_FORMS.get(verb), _MAKERS.get(verb))
    match = re.fullmatch(form, text) if form else None
    if match is None or make is None:
        raise StoryError(f"not a step: {text!r}")
    return make(match.groupdict())


def _duration_ms(text: str) -> int:
    number, unit = text.split()
    return int(number) * UNITS_MS[unit]


def seconds(text: str | None) -> int | None:
    if text is None:
        return None
    time_ms = _duration_ms(text)
    if time_ms % 1_000:
        raise StoryError(f"clients speak in whole seconds: {text!r}")
    return time_ms // 1_000


def _settings(text: str) -> Settings:
    return {name: _setting(value) for name, value in (word.split("=") for word in text.split())}


def _setting(text: str) -> int | bool | str:
    return int(text) if text.isdecimal() else _WORDS.get(text, text)


def items(text: str) -> tuple[Item, ...]:
    if text == "nothing":
        return ()
    return tuple(_item(body) for part in text.split(", ") for body in _bodies(part))


def _bodies(text: str) -> list[str]:
    """Return `a1`, `a2`, `a3` for `a1 to a3`, and anything else as it is."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return [text]
    return [f"{match['stem']}{number}" for number in range(int(match["first"]), int(match["last"]) + 1)]


def _item(text: str) -> Item:
    match = _ITEM.fullmatch(text)
    if match is None:
        raise StoryError(f"not a message of an answer: {text!r}")
    first = match["first"]
    return Item(
        body=match["body"],
        receipt=match["receipt"],
        count=int(match["count"] or 1),
        first_ms=None if first is None else _duration_ms(first),
        again=match["again"],
        source=match["source"],
    )


def _state(text: str, *more: str) -> str:
    if text not in (*STATES, *more):
        raise StoryError(f"not a state of a receipt: {text!r}")
    return text


def _handle(words: dict[str, str]) -> Handle:
    return Handle(name=words["receipt"], forged=bool(words["forged"]), queue=words["queue"])


def _change(words: dict[str, str]) -> Change:
    timeout_s = seconds(words["timeout"])
    assert timeout_s is not None
    return Change(handle=_handle(words), timeout_s=timeout_s, state=_state(words["state"], "too long"))


def _receive(words: dict[str, str]) -> Receive:
    lost = words["items"] == "lost"
    return Receive(
        queue=words["queue"],
        count=int(words["count"] or 1),
        timeout_s=seconds(words["timeout"]),
        items=None if lost else items(words["items"]),
        attempt=words["attempt"],
    )


def _send(words: dict[str, str]) -> Send | SendMany:
    if not words["last"]:
        return _send_one(words, words["body"])
    bodies = _bodies(f"{words['body']} to {words['last']}")
    if len(bodies) < 2:
        raise StoryError(f"not bodies in a row: {words['body']} to {words['last']}")
    return SendMany(tuple(_send_one(words, body) for body in bodies))


def _send_one(words: dict[str, str], body: str) -> Send:
    return Send(
        queue=words["queue"],
        body=body,
        delay_s=seconds(words["delay"]),
        group=words["group"],
        dedup_id=words["dedup"],
        duplicate_of=words["duplicate"],
    )


def _answer(words: dict[str, str]) -> Answer:
    outcome = words["outcome"]
    return Answer(poll=words["poll"], outcome=outcome if outcome in ("not yet", "no queue") else items(outcome))


_MAKERS: dict[str, Callable[[dict[str, str]], Action]] = {
    "queue": lambda words: Queue(
        queue=words["queue"], settings=_settings(words["settings"]), too_soon=bool(words["too_soon"])
    ),
    "set": lambda words: Set(queue=words["queue"], settings=_settings(words["settings"])),
    "send": _send,
    "receive": _receive,
    "delete": lambda words: Delete(handle=_handle(words), state=_state(words["state"])),
    "change": _change,
    "wait": lambda words: Wait(time_ms=_duration_ms(words["time"])),
    "purge": lambda words: Purge(queue=words["queue"], too_soon=bool(words["too_soon"])),
    "drop": lambda words: Drop(queue=words["queue"]),
    "poll": lambda words: Poll(
        queue=words["queue"], wait_s=seconds(words["wait"]), poll=words["poll"], timeout_s=seconds(words["timeout"])
    ),
    "answer": _answer,
    "hang": lambda words: HangUp(poll=words["poll"]),
}

# What both runners keep of a story: the receipts by name, and the check of an answer against the told one.


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
        self._receipts[name] = (self._receipts[name][0], receipt)

    def find(self, handle: Handle) -> tuple[str, str]:
        if handle.name == NONSENSE:
            assert handle.queue is not None, "say on which queue"
            return handle.queue, NONSENSE
        queue, text = self._receipts[handle.name]
        if handle.forged:
            text = text[:-1] + ("A" if text[-1] != "A" else "B")
        return handle.queue or queue, text


# Playing a story: one step after the other, and after each the counters of every queue.


class Teller(Protocol):
    """Something that executes steps."""

    def tell(self, action: Any) -> None:
        """Execute one step."""

    def counts(self, queue: str) -> Counts:
        """Return the counters of a queue."""

    def finish(self) -> None:
        """End the story."""


def play(told: Story, teller: Teller) -> None:
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
