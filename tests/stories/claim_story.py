"""The language of the stories in docs/protocols/claims.md: that of messages, and what is done with claims.

A claim is named by its source and its number; a step that says no epoch uses that of the source's last `open`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import singledispatchmethod
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from tests.store.host import Host
from tests.stories import story
from tests.stories.story import Counts, Item, StoryError, Teller
from veilmq.client import ClientError
from veilmq.client.api import Claims
from veilmq.core import claims
from veilmq.core.claims import Acknowledged, Bound, SourceView
from veilmq.core.errors import VeilmqError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocols" / "claims.md"

FAILURES = {
    "fenced": "EpochFenced",
    "gap": "ClaimGap",
    "lost": "ClaimLost",
    "released": "ClaimReleased",
    "acknowledged": "ClaimAcknowledged",
    "taken": "ConsumerTaken",
    "unknown": "SourceNotFound",
    "not claimed": "MessageNotClaimed",
    "no shard": "ShardNotFound",
}
"""How a step fails → the class of the error."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a source; `outcome` is the new epoch or a failure."""

    source: str
    queue: str
    consumer: str
    takeover: bool
    hold_s: int | None
    lease_s: int | None
    outcome: int | str


@dataclass(frozen=True, slots=True)
class Claim:
    """Bind a claim; `outcome` is what is told of it (messages, shards, again), or a failure."""

    source: str
    number: int
    messages_max: int
    shard_messages: int | None
    epoch: int | None
    outcome: tuple[int, int, bool] | str


@dataclass(frozen=True, slots=True)
class Read:
    """Read a shard of a claim."""

    source: str
    number: int
    shard: int
    outcome: tuple[Item, ...] | str


@dataclass(frozen=True, slots=True)
class Look:
    """See how a source stands, or with `beats` renew it, too; `outcome` is what `view_text` says, or a failure."""

    source: str
    beats: bool
    epoch: int | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Delete a prefix; `outcome` is the number and those that are lost, or a failure."""

    source: str
    number: int
    epoch: int | None
    outcome: tuple[int, tuple[int, ...]] | str


@dataclass(frozen=True, slots=True)
class Release:
    """Give a claim back."""

    source: str
    number: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class Evict:
    """Take the message with this body out of a claim."""

    source: str
    number: int
    body: str
    failure: str | None


@dataclass(frozen=True, slots=True)
class Close:
    """Forget a source."""

    source: str
    failure: str | None


@dataclass(frozen=True, slots=True)
class Restart:
    """Stop, and start on the same store."""


_DURATION = r"\d+ (?:s|h)"
_TERMS = (
    r"(?: consumer (?P<consumer>\w+))?(?P<takeover> takeover)?"
    rf"(?: lease (?P<lease>{_DURATION}))?(?: hold (?P<hold>{_DURATION}))?"
)
_CLAIM = r"(?P<source>\w+) (?P<number>\d+)"
_EPOCH = r"(?: epoch (?P<epoch>\d+))?"
_MESSAGES = re.compile(r"(?P<messages>\d+) messages?(?: in (?P<shards>\d+) shards)?(?P<again> again)?")
_DELETED = re.compile(r"(?P<number>\d+)(?: lost (?P<lost>\d+(?:, \d+)*))?")

Words = dict[str, str]


def _failure(text: str | None) -> str | None:
    if text is not None and text not in FAILURES:
        raise StoryError(f"not a failure: {text!r}")
    return text


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _open(words: Words) -> Open:
    outcome = words["outcome"]
    return Open(
        source=words["source"],
        queue=words["queue"],
        consumer=words["consumer"] or "",
        takeover=bool(words["takeover"]),
        hold_s=story.seconds(words["hold"]),
        lease_s=story.seconds(words["lease"]),
        outcome=int(outcome.removeprefix("epoch ")) if outcome.startswith("epoch ") else _failure(outcome) or "",
    )


def _claim(words: Words) -> Claim:
    outcome: tuple[int, int, bool] | str
    if match := _MESSAGES.fullmatch(words["outcome"]):
        outcome = int(match["messages"]), int(match["shards"] or 1), bool(match["again"])
    elif words["outcome"] == "nothing":
        outcome = 0, 0, False
    else:
        outcome = _failure(words["outcome"]) or ""
    return Claim(
        source=words["source"],
        number=int(words["number"]),
        messages_max=int(words["count"] or 100),
        shard_messages=_number(words["shard"]),
        epoch=_number(words["epoch"]),
        outcome=outcome,
    )


def _read(words: Words) -> Read:
    outcome = words["outcome"]
    return Read(
        source=words["source"],
        number=int(words["number"]),
        shard=int(words["shard"] or 0),
        outcome=outcome if outcome in FAILURES else story.items(outcome),
    )


def _acknowledge(words: Words) -> Acknowledge:
    outcome: tuple[int, tuple[int, ...]] | str
    if match := _DELETED.fullmatch(words["outcome"]):
        outcome = int(match["number"]), tuple(int(each) for each in (match["lost"] or "").split(", ") if each)
    else:
        outcome = _failure(words["outcome"]) or ""
    return Acknowledge(words["source"], int(words["number"]), _number(words["epoch"]), outcome)


def _look(words: Words, *, beats: bool) -> Look:
    return Look(words["source"], beats, _number(words.get("epoch")), words["outcome"])


FORMS: dict[str, tuple[str, Callable[[Words], object]]] = {
    "open": (rf"open (?P<source>\w+) on (?P<queue>\w+){_TERMS} -> (?P<outcome>.+)", _open),
    "claim": (
        rf"claim {_CLAIM}(?: up to (?P<count>\d+))?(?: shards of (?P<shard>\d+))?{_EPOCH} -> (?P<outcome>.+)",
        _claim,
    ),
    "read": (rf"read {_CLAIM}(?: shard (?P<shard>\d+))? -> (?P<outcome>.+)", _read),
    "beat": (rf"beat (?P<source>\w+){_EPOCH} -> (?P<outcome>.+)", lambda words: _look(words, beats=True)),
    "show": (r"show (?P<source>\w+) -> (?P<outcome>.+)", lambda words: _look(words, beats=False)),
    "acknowledge": (rf"acknowledge {_CLAIM}{_EPOCH} -> (?P<outcome>.+)", _acknowledge),
    "release": (
        rf"release {_CLAIM}(?: -> (?P<outcome>.+))?",
        lambda words: Release(words["source"], int(words["number"]), _failure(words["outcome"])),
    ),
    "evict": (
        rf"evict {_CLAIM} (?P<body>\w+)(?: -> (?P<outcome>.+))?",
        lambda words: Evict(words["source"], int(words["number"]), words["body"], _failure(words["outcome"])),
    ),
    "close": (
        r"close (?P<source>\w+)(?: -> (?P<outcome>.+))?",
        lambda words: Close(words["source"], _failure(words["outcome"])),
    ),
    "restart": (r"restart", lambda words: Restart()),
}
"""Verb → the form of its line, and what is made of it."""

STORIES = story.stories(PAGE.read_text(encoding="utf-8"), FORMS)

# Tells a story about claims: by `Claims`, the client's or one on the engine; the other steps are told as ever.


DEFAULT_SHARD_MESSAGES = 1_000


class Message(NamedTuple):
    """A message of a claim."""

    id: str
    body: str
    receives: int


class EngineClaims:
    """The claims of one queue through the engine's port, as the client has them."""

    def __init__(self, host: Host, queue: str) -> None:
        self._host = host
        self._queue = queue

    def open(self, source: str, **fields: Any) -> SourceView:
        view: SourceView = self._host.do(claims.OpenSource(queue=self._queue, source=source, **fields))
        return view

    def claim(self, source: str, **fields: Any) -> Bound:
        bound: Bound = self._host.do(claims.Claim(queue=self._queue, source=source, **fields))
        return self.claim(source, **fields) if bound.more else bound

    def read(self, source: str, *, number: int, shard: int, cursor: str = "") -> list[Message]:
        command = claims.ReadClaim(queue=self._queue, source=source, number=number, shard=shard, cursor=cursor)
        page = self._host.do(command)
        messages = [Message(str(UUID(bytes=each.id)), each.body, each.receive_count) for each in page.messages]
        if not page.cursor:
            return messages
        return messages + self.read(source, number=number, shard=shard, cursor=page.cursor)

    def heartbeat(self, source: str, *, epoch: int) -> SourceView:
        view: SourceView = self._host.do(claims.Heartbeat(queue=self._queue, source=source, epoch=epoch))
        return view

    def acknowledge(self, source: str, *, epoch: int, number: int) -> Acknowledged:
        answer: Acknowledged = self._host.do(
            claims.AcknowledgeClaims(queue=self._queue, source=source, epoch=epoch, number=number)
        )
        return answer

    def release(self, source: str, *, number: int) -> None:
        self._host.do(claims.ReleaseClaim(queue=self._queue, source=source, number=number))

    def evict(self, source: str, *, number: int, message: str) -> None:
        command = claims.EvictMessage(queue=self._queue, source=source, number=number, message=UUID(message).bytes)
        self._host.do(command)

    def close_source(self, source: str) -> None:
        self._host.do(claims.CloseSource(queue=self._queue, source=source))

    def sources(self) -> list[SourceView]:
        views: list[SourceView] = self._host.do(claims.ListSources(queue=self._queue))
        return views


class ClientClaims(Claims):
    """The client, whose messages are told as those of the engine are."""

    def read(self, source: str, *, number: int, shard: int = 0) -> Iterator[Any]:
        for batch in super().read(source, number=number, shard=shard):
            for row in batch.to_pylist():
                yield Message(row["id"], row["body"], row["receive_count"])


class ClaimTeller:
    """Executes the steps of one story."""

    def __init__(self, told: Teller, claims_of: Callable[[str], Any], restart: Callable[[], object]) -> None:
        self._told = told
        self._claims_of = claims_of
        self._restart = restart
        self._queues: dict[str, str] = {}
        self._epochs: dict[str, int] = {}

    def counts(self, queue: str) -> Counts:
        return self._told.counts(queue)

    def finish(self) -> None:
        self._told.finish()

    @singledispatchmethod
    def tell(self, action: Any) -> None:
        self._told.tell(action)

    @tell.register
    def _(self, action: Open) -> None:
        self._queues[action.source] = action.queue
        asked = {"hold_s": action.hold_s, "lease_s": action.lease_s}
        with expecting(action.outcome):
            view = self._of(action.source).open(
                action.source,
                consumer=action.consumer,
                takeover=action.takeover,
                **{name: value for name, value in asked.items() if value is not None},
            )
            self._epochs[action.source] = view.epoch
            assert view.epoch == action.outcome

    @tell.register
    def _(self, action: Claim) -> None:
        with expecting(action.outcome):
            bound = self._of(action.source).claim(
                action.source,
                epoch=self._epoch(action),
                number=action.number,
                messages_max=action.messages_max,
                shard_messages=action.shard_messages or DEFAULT_SHARD_MESSAGES,
            )
            assert bound.number == action.number
            assert (bound.messages, bound.shards if bound.messages else 0, bound.again) == action.outcome

    @tell.register
    def _(self, action: Read) -> None:
        with expecting(action.outcome):
            messages = self._read(action.source, action.number, action.shard)
            assert isinstance(action.outcome, tuple)
            assert [(each.body, each.receives) for each in messages] == [
                (item.body, item.count) for item in action.outcome
            ]

    @tell.register
    def _(self, action: Look) -> None:
        of = self._of(action.source)
        with expecting(action.outcome):
            if action.beats:
                view = of.heartbeat(action.source, epoch=self._epoch(action))
            else:
                (view,) = (view for view in of.sources() if view.source == action.source)
            assert view_text(view) == action.outcome

    @tell.register
    def _(self, action: Acknowledge) -> None:
        with expecting(action.outcome):
            answer = self._of(action.source).acknowledge(action.source, epoch=self._epoch(action), number=action.number)
            assert (answer.acknowledged, tuple(answer.lost)) == action.outcome

    @tell.register
    def _(self, action: Release) -> None:
        with expecting(action.failure):
            self._of(action.source).release(action.source, number=action.number)

    @tell.register
    def _(self, action: Evict) -> None:
        ids = {each.body: each.id for number in range(1, 10) for each in self._readable(action.source, number)}
        with expecting(action.failure):
            self._of(action.source).evict(action.source, number=action.number, message=ids[action.body])

    @tell.register
    def _(self, action: Close) -> None:
        with expecting(action.failure):
            self._of(action.source).close_source(action.source)

    @tell.register
    def _(self, action: Restart) -> None:
        self._restart()

    def _of(self, source: str) -> Any:
        return self._claims_of(self._queues[source])

    def _epoch(self, action: Any) -> int:
        return self._epochs[action.source] if action.epoch is None else int(action.epoch)

    def _read(self, source: str, number: int, shard: int) -> list[Message]:
        return list(self._of(source).read(source, number=number, shard=shard))

    def _readable(self, source: str, number: int) -> list[Message]:
        try:
            return self._read(source, number, 0)
        except (ClientError, VeilmqError):
            return []


@contextmanager
def expecting(outcome: object) -> Iterator[None]:
    """Let a call fail as a story tells, if it tells a failure."""
    failure = FAILURES.get(outcome) if isinstance(outcome, str) else None
    if failure is None:
        yield
        return
    with pytest.raises((ClientError, VeilmqError)) as caught:
        yield
    error = caught.value
    assert (error.code if isinstance(error, ClientError) else type(error).__name__) == failure


def view_text(view: SourceView) -> str:
    states = ", ".join(f"{claim.number} {claim.state.value}" for claim in view.claims)
    life = "alive" if view.alive else "silent"
    return f"{life}, {view.acknowledged} of {view.last}" + (f": {states}" if states else "")
