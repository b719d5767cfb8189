"""The language of the stories in docs/protocols/claims.md: the steps of messages and of claims.

A claim is named by its source and number; without an epoch, a step uses that of the last `open` of its source.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from tests.store.host import Host
from tests.stories import story
from tests.stories.story import DURATION, Action, Counts, Runner
from veilmq.client import ClientError
from veilmq.client.api import Claims
from veilmq.core import claims
from veilmq.core.claims import Acknowledged, Bound, SourceView
from veilmq.core.errors import VeilmqError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocols" / "claims.md"

FAILURES = {  # word → class of the error
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
_FAILED = rf"(?P<failure>{'|'.join(FAILURES)})"
_OPTIONS = (
    r"(?: consumer (?P<consumer>\w+))?(?P<takeover> takeover)?"
    rf"(?: lease (?P<lease_s>{DURATION}))?(?: hold (?P<hold_s>{DURATION}))?"
)
_CLAIM = r"(?P<source>\w+) (?P<number>\d+)"
_EPOCH = r"(?: epoch (?P<epoch>\d+))?"
_SIZES = r"(?: up to (?P<messages_max>\d+))?(?: shards of (?P<shard_messages>\d+))?"
_BOUND = r"(?P<messages>\d+) messages?(?: in (?P<shards>\d+) shards)?(?P<again> again)?"
FORMS = story.by_verb(
    [
        rf"open (?P<source>\w+) on (?P<queue>\w+){_OPTIONS} -> (?:epoch (?P<epoch>\d+)|{_FAILED})",
        rf"claim {_CLAIM}{_SIZES}{_EPOCH} -> (?:{_BOUND}|nothing|{_FAILED})",
        rf"read {_CLAIM}(?: shard (?P<shard>\d+))? -> (?:{_FAILED}|(?P<items>.+))",
        rf"beat (?P<source>\w+){_EPOCH} -> (?:{_FAILED}|(?P<view>.+))",
        rf"show (?P<source>\w+) -> (?:{_FAILED}|(?P<view>.+))",
        rf"acknowledge {_CLAIM}{_EPOCH} -> (?:(?P<deleted>\d+)(?: lost (?P<missing>\d+(?:, \d+)*))?|{_FAILED})",
        rf"release {_CLAIM}(?: -> {_FAILED})?",
        rf"evict {_CLAIM} (?P<body>\w+)(?: -> {_FAILED})?",
        rf"close (?P<source>\w+)(?: -> {_FAILED})?",
        r"restart",
    ]
)

STORIES = story.stories(PAGE.read_text(encoding="utf-8"), FORMS)
MESSAGES_MAX = 100
SHARD_MESSAGES = 1_000


class Message(NamedTuple):
    id: str
    body: str
    receives: int


class EngineClaims:
    """The interface of the client's `Claims` on an engine."""

    def __init__(self, host: Host, queue: str) -> None:
        self._host = host
        self._queue = queue

    def _do(self, command: Any, **fields: Any) -> Any:
        return self._host.do(command(queue=self._queue, **fields))

    def open(self, source: str, **fields: Any) -> SourceView:
        view: SourceView = self._do(claims.OpenSource, source=source, **fields)
        return view

    def claim(self, source: str, **fields: Any) -> Bound:
        bound: Bound = self._do(claims.Claim, source=source, **fields)
        return self.claim(source, **fields) if bound.more else bound

    def read(self, source: str, *, number: int, shard: int, cursor: str = "") -> list[Message]:
        page = self._do(claims.ReadClaim, source=source, number=number, shard=shard, cursor=cursor)
        messages = [Message(str(UUID(bytes=each.id)), each.body, each.receive_count) for each in page.messages]
        return messages + (self.read(source, number=number, shard=shard, cursor=page.cursor) if page.cursor else [])

    def heartbeat(self, source: str, *, epoch: int) -> SourceView:
        view: SourceView = self._do(claims.Heartbeat, source=source, epoch=epoch)
        return view

    def acknowledge(self, source: str, *, epoch: int, number: int) -> Acknowledged:
        answer: Acknowledged = self._do(claims.AcknowledgeClaims, source=source, epoch=epoch, number=number)
        return answer

    def release(self, source: str, *, number: int) -> None:
        self._do(claims.ReleaseClaim, source=source, number=number)

    def evict(self, source: str, *, number: int, message: str) -> None:
        self._do(claims.EvictMessage, source=source, number=number, message=UUID(message).bytes)

    def close_source(self, source: str) -> None:
        self._do(claims.CloseSource, source=source)

    def sources(self) -> list[SourceView]:
        views: list[SourceView] = self._do(claims.ListSources)
        return views


class ClientClaims(Claims):
    """The client's `Claims`, returning messages like `EngineClaims`."""

    def read(self, source: str, *, number: int, shard: int = 0) -> Iterator[Any]:
        for batch in super().read(source, number=number, shard=shard):
            for row in batch.to_pylist():
                yield Message(row["id"], row["body"], row["receive_count"])


class ClaimRunner(Runner):
    """Execute the steps of claims, and pass the others on to `runner`."""

    def __init__(self, runner: Runner, claims_of: Callable[[str], Any], restart: Callable[[], object]) -> None:
        """`claims_of` returns the claims of a queue by its name in the story."""
        self._runner = runner
        self._claims_of = claims_of
        self._restart = restart
        self._queues: dict[str, str] = {}
        self._epochs: dict[str, int] = {}

    def counts(self, queue: str) -> Counts:
        return self._runner.counts(queue)

    def finish(self) -> None:
        self._runner.finish()

    def run(self, action: Action) -> None:
        if action.verb not in FORMS:
            self._runner.run(action)
        elif action.verb == "restart":
            self._restart()
        else:
            self._queues[action.source] = getattr(action, "queue", "") or self._queues[action.source]
            with failing(action.failure):
                getattr(self, f"run_{action.verb}")(action, self._claims_of(self._queues[action.source]))

    def run_open(self, action: Action, of: Any) -> None:
        fields = {"hold_s": action.hold_s, "lease_s": action.lease_s}
        view = of.open(
            action.source,
            consumer=action.consumer or "",
            takeover=bool(action.takeover),
            **{name: value for name, value in fields.items() if value is not None},
        )
        self._epochs[action.source] = view.epoch
        assert view.epoch == action.epoch

    def run_claim(self, action: Action, of: Any) -> None:
        bound = of.claim(
            action.source,
            epoch=self._epoch(action),
            number=action.number,
            messages_max=action.messages_max or MESSAGES_MAX,
            shard_messages=action.shard_messages or SHARD_MESSAGES,
        )
        assert (bound.number, bound.messages, bound.again) == (
            action.number,
            action.messages or 0,
            bool(action.again),
        )
        assert not bound.messages or bound.shards == (action.shards or 1)

    def run_read(self, action: Action, of: Any) -> None:
        messages = of.read(action.source, number=action.number, shard=action.shard or 0)
        got = [(each.body, each.receives) for each in messages]
        assert got == [(item.body, item.count) for item in action.items]

    def run_beat(self, action: Action, of: Any) -> None:
        assert view_text(of.heartbeat(action.source, epoch=self._epoch(action))) == action.view

    def run_show(self, action: Action, of: Any) -> None:
        (view,) = (view for view in of.sources() if view.source == action.source)
        assert view_text(view) == action.view

    def run_acknowledge(self, action: Action, of: Any) -> None:
        answer = of.acknowledge(action.source, epoch=self._epoch(action), number=action.number)
        assert answer.acknowledged == int(action.deleted)
        assert list(answer.lost) == [int(each) for each in (action.missing or "").split(", ") if each]

    def run_release(self, action: Action, of: Any) -> None:
        of.release(action.source, number=action.number)

    def run_evict(self, action: Action, of: Any) -> None:
        ids: dict[str, str] = {}
        for number in range(1, 10):
            with suppress(ClientError, VeilmqError):
                ids |= {each.body: each.id for each in of.read(action.source, number=number, shard=0)}
        of.evict(action.source, number=action.number, message=ids[action.body])

    def run_close(self, action: Action, of: Any) -> None:
        of.close_source(action.source)

    def _epoch(self, action: Action) -> int:
        return self._epochs[action.source] if action.epoch is None else int(action.epoch)


@contextmanager
def failing(how: str | None) -> Iterator[None]:
    if how is None:
        yield
        return
    with pytest.raises((ClientError, VeilmqError)) as caught:
        yield
    error = caught.value
    assert (error.code if isinstance(error, ClientError) else type(error).__name__) == FAILURES[how]


def view_text(view: SourceView) -> str:
    states = ", ".join(f"{claim.number} {claim.state.value}" for claim in view.claims)
    life = "alive" if view.alive else "silent"
    return f"{life}, {view.acknowledged} of {view.last}" + (f": {states}" if states else "")
