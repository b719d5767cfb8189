"""The language of the stories in docs/protocols/claims.md: that of messages, and what is done with claims.

A claim is named by its source and its number; a step that says no epoch uses that of the source's last `open`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.stories import story
from tests.stories.story import Item, StoryError

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
    "open": (
        rf"open (?P<source>\w+) on (?P<queue>\w+){_TERMS} -> (?P<outcome>.+)",
        _open,
    ),
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
