"""Every story of docs/lifecycle.md, through the engine port, SQS and SMQ, each on every store."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import EVERYTHING
from tests.stories.claim_story import (
    FORMS,
    Acknowledge,
    Claim,
    ClaimTeller,
    ClientClaims,
    Close,
    EngineClaims,
    Evict,
    Look,
    Open,
    Read,
    Release,
    Restart,
)
from tests.stories.claim_story import STORIES as CLAIM_STORIES
from tests.stories.over_http import SQS_ONLY, HttpTeller, SmqTeller
from tests.stories.story import (
    PAGE,
    UNITS_MS,
    Answer,
    Change,
    Delete,
    Drop,
    Handle,
    HangUp,
    Item,
    Poll,
    Purge,
    Queue,
    Receive,
    Send,
    SendMany,
    Set,
    Story,
    StoryError,
    Wait,
    play,
    read,
    stories,
)
from tests.stories.through_engine import EngineTeller, Place, full, hosted
from veilmq.testing import RunningServer

STORIES = stories(PAGE.read_text(encoding="utf-8"))
_AT_THE_PORT = {("stale_receipts", "act"): "any_receive"}  # a setting of a server → what its commands then have


STORES = [pytest.param("memory", marks=EVERYTHING), "folder", "postgres"]
SERVED = [("http", "folder"), ("smq", "folder")]
"""The protocols and stores of which `make test` plays each story; the other pairs are for `make test-all`."""
OTHERS = [("http", "memory"), ("http", "postgres"), ("smq", "memory"), ("smq", "postgres")]
WOKEN = [
    told
    for told in STORIES
    if any(isinstance(step.action, Poll) for step in told.steps)
    and not any(isinstance(step.action, Wait) and step.action.time_ms >= UNITS_MS["h"] for step in told.steps)
]
"""What a server and a database do together: a notice of the one wakes a receive that waits in the other."""


def _telling(told: Story, door: str, store: str) -> Any:
    """Return a story with a protocol and a store, for `make test-all` unless the pair has something to add."""
    adds = (door, store) in SERVED or (told in WOKEN and (door, store) == ("http", "postgres"))
    return pytest.param(told, door, store, id=f"{told.title}-{door}-{store}", marks=() if adds else EVERYTHING)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_story_through_the_port(told: Story, store: str, place: Callable[[str], Place]) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    with hosted(place(store)) as host:
        play(told, EngineTeller(host, **{_AT_THE_PORT[each]: True for each in told.server}))


@pytest.mark.parametrize(
    ("told", "door", "store"), [_telling(told, *pair) for told in STORIES for pair in [*SERVED, *OTHERS]]
)
def test_story(told: Story, door: str, store: str, serve: Callable[..., RunningServer]) -> None:
    """The same over SQS and over SMQ."""
    server = serve(store, **dict(told.server))
    play(told, HttpTeller(server) if door == "http" else SmqTeller(server, told))


def test_the_page_says_of_each_mark_what_it_means() -> None:
    assert re.findall(r"^\| `SQS: ([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(SQS_ONLY)


@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_a_step_is_marked_where_smq_cannot_say_it(told: Story) -> None:
    """With the reason why: none is left to SQS without one."""
    for step in told.steps:
        assert not step.sqs_only or SQS_ONLY[step.sqs_only](step.action), step.text


# The language of the stories: what is in it is read, and what is not is an error, not a step left out.


@pytest.mark.parametrize(
    ("line", "action"),
    [
        pytest.param("queue jobs", Queue("jobs", {}), id="queue"),
        pytest.param(
            "queue jobs delay_s=5 retention_s=60", Queue("jobs", {"delay_s": 5, "retention_s": 60}), id="set-up"
        ),
        pytest.param(
            "queue jobs fifo=true dead_letter_queue=failed receives_max=2",
            Queue("jobs", {"fifo": True, "dead_letter_queue": "failed", "receives_max": 2}),
            id="words",
        ),
        pytest.param("set jobs delay_s=5", Set("jobs", {"delay_s": 5}), id="set"),
        pytest.param("send jobs a", Send("jobs", "a", None), id="send"),
        pytest.param("send jobs a delay 5 s", Send("jobs", "a", 5), id="delay"),
        pytest.param(
            "send jobs a group g dedup d delay 5 s -> duplicate of b",
            Send("jobs", "a", 5, "g", "d", "b"),
            id="duplicate",
        ),
        pytest.param(
            "send jobs a9 to a11 group g",
            SendMany((Send("jobs", "a9", None, "g"), Send("jobs", "a10", None, "g"), Send("jobs", "a11", None, "g"))),
            id="send-many",
        ),
        pytest.param(
            "receive jobs up to 10 -> a1 to a2, b",
            Receive("jobs", 10, None, (Item("a1", None, 1, None), Item("a2", None, 1, None), Item("b", None, 1, None))),
            id="receive-many",
        ),
        pytest.param(
            "receive jobs attempt t -> a again r1 count 2 from other",
            Receive("jobs", 1, None, (Item("a", None, 2, None, "r1", "other"),), "t"),
            id="attempt",
        ),
        pytest.param("receive jobs -> nothing", Receive("jobs", 1, None, ()), id="nothing"),
        pytest.param("receive jobs -> lost", Receive("jobs", 1, None, None), id="lost"),
        pytest.param(
            "receive jobs up to 10 timeout 12 h -> a as r1 count 2 first 7 ms, b",
            Receive("jobs", 10, 43_200, (Item("a", "r1", 2, 7), Item("b", None, 1, None))),
            id="receive",
        ),
        pytest.param("delete r1 -> live", Delete(Handle("r1", False, None), "live"), id="delete"),
        pytest.param("delete r1 on other -> invalid", Delete(Handle("r1", False, "other"), "invalid"), id="on-other"),
        pytest.param("delete forged r1 -> invalid", Delete(Handle("r1", True, None), "invalid"), id="forged"),
        pytest.param("change r1 10 s -> expired", Change(Handle("r1", False, None), 10, "expired"), id="change"),
        pytest.param("change r1 0 s -> too long", Change(Handle("r1", False, None), 0, "too long"), id="too-long"),
        pytest.param("wait 9999 ms", Wait(9_999), id="wait"),
        pytest.param("purge jobs", Purge("jobs"), id="purge"),
        pytest.param("purge jobs -> too soon", Purge("jobs", True), id="purged-lately"),
        pytest.param("queue jobs -> too soon", Queue("jobs", {}, True), id="deleted-lately"),
        pytest.param("drop jobs", Drop("jobs"), id="drop"),
        pytest.param("poll jobs 20 s as p1", Poll("jobs", 20, "p1"), id="poll"),
        pytest.param("poll jobs as p1", Poll("jobs", None, "p1"), id="own-wait"),
        pytest.param("poll jobs 20 s timeout 12 h as p1", Poll("jobs", 20, "p1", 43_200), id="poll-with-timeout"),
        pytest.param("answer p1 -> not yet", Answer("p1", "not yet"), id="not-yet"),
        pytest.param("answer p1 -> no queue", Answer("p1", "no queue"), id="no-queue"),
        pytest.param("answer p1 -> a", Answer("p1", (Item("a", None, 1, None),)), id="answer"),
        pytest.param("hang up p1", HangUp("p1"), id="hang-up"),
    ],
)
def test_every_step_is_read(line: str, action: object) -> None:
    """Each form of each step, with the counters behind it."""
    (step,) = read([f"{line}  | 1 2 3 / 0 0 0"])
    assert step.action == action
    assert step.counts == ((1, 2, 3), (0, 0, 0))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("send jobs a", id="no-counters"),
        pytest.param("send jobs a | 1 0", id="two-counters"),
        pytest.param("send jobs a | 1 0 x", id="not-a-number"),
        pytest.param("| 0 0 0", id="no-step"),
        pytest.param("# remark | 0 0 0", id="remark"),
        pytest.param("publish jobs a | 1 0 0", id="unknown-verb"),
        pytest.param("send jobs | 1 0 0", id="no-body"),
        pytest.param("send jobs a2 to a2 | 1 0 0", id="no-range"),
        pytest.param("send jobs a to b | 1 0 0", id="no-numbers"),
        pytest.param("send jobs a delay 1 ms | 1 0 0", id="not-whole-seconds"),
        pytest.param("wait 5 | 0 0 0", id="no-unit"),
        pytest.param("receive jobs | 0 0 0", id="no-answer"),
        pytest.param("receive jobs -> a as | 0 0 0", id="unfinished"),
        pytest.param("delete r1 -> fine | 0 0 0", id="unknown-state"),
        pytest.param("delete r1 -> too long | 0 0 0", id="state-of-another-step"),
        pytest.param("purge jobs | 0 0 0 | purge", id="mark-of-nobody"),
    ],
)
def test_what_is_not_in_the_language_is_an_error(line: str) -> None:
    """An unknown or unfinished line is never passed over."""
    with pytest.raises(StoryError):
        list(read([line]))


def test_a_mark_behind_the_counters_says_why_smq_cannot_say_it() -> None:
    """A step without one is for every protocol."""
    marked, unmarked = read(["purge jobs | 0 0 0 | SQS: purge", "wait 1 s | 0 0 0"])
    assert (marked.action, marked.counts, marked.sqs_only) == (Purge("jobs"), ((0, 0, 0),), "purge")
    assert unmarked.sqs_only == ""


def test_a_page_gives_its_stories() -> None:
    """Each story has the heading above it; other blocks are left alone."""
    page = "# One\n```story\nwait 1 s | none\n```\n```text\nanything\n```\n## Two\n```story\npurge a | 0 0 0\n```\n"
    found = stories(page)
    assert [story.title for story in found] == ["One", "Two"]
    assert [step.action for story in found for step in story.steps] == [Wait(1_000), Purge("a")]


def test_a_story_without_an_end_is_an_error() -> None:
    """A fence that is not closed would hide what follows."""
    with pytest.raises(StoryError):
        stories("```story\nwait 1 s | none\n")


def test_the_page_has_as_many_stories_as_fences() -> None:
    """A fence whose mark is misspelt would be a story that nobody executes."""
    text = PAGE.read_text(encoding="utf-8")
    told: list[Story] = stories(text)
    fences = [line for line in text.splitlines() if line.startswith("```") and line != "```"]
    assert len(told) == len(fences) - fences.count("```mermaid") > 30
    assert len({story.title for story in told}) == len(told), "two stories with one title"


# Every story of docs/protocols/claims.md: through the engine port and over HTTP, each on every store.


CLAIM_STORES = ("memory", "folder", "postgres")
RESTARTED = [told for told in CLAIM_STORIES if any(isinstance(step.action, Restart) for step in told.steps)]
TOLD = [(told, store) for told in CLAIM_STORIES for store in CLAIM_STORES if store != "memory" or told not in RESTARTED]


CLAIM_SERVED = [pytest.param("memory", marks=EVERYTHING), "folder", pytest.param("postgres", marks=EVERYTHING)]
"""The stores of servers; on a database `make test` plays the story of a restart."""


def name(value: Story | str) -> str:
    """Return a story or a store in the output of pytest."""
    return value if isinstance(value, str) else value.title


@pytest.mark.parametrize(("told", "store"), TOLD, ids=name)
def test_claim_story_through_the_port(told: Story, store: str, place: Callable[[str], Place]) -> None:
    """Each step does what it says, and every counter of every queue is as told after it."""
    with hosted(place(store)) as host:
        play(told, ClaimTeller(EngineTeller(host), lambda queue: EngineClaims(host, full(queue)), host.reopen))


@pytest.mark.parametrize("store", CLAIM_SERVED)
@pytest.mark.parametrize("told", [told for told in CLAIM_STORIES if told not in RESTARTED], ids=name)
def test_claim_story(told: Story, store: str, serve: Callable[[str], RunningServer]) -> None:
    server = serve(store)
    with ExitStack() as closing:
        teller = HttpTeller(server)

        def claims_of(queue: str) -> ClientClaims:
            return closing.enter_context(ClientClaims(server.endpoint, teller.url(queue)))

        play(told, ClaimTeller(teller, claims_of, restart=pytest.fail))


@pytest.mark.parametrize("store", CLAIM_STORES[1:])
@pytest.mark.parametrize("told", RESTARTED, ids=name)
def test_story_of_a_restart(told: Story, store: str, place: Callable[[str], Place]) -> None:
    """Over HTTP, on a server of its own, that begins again with the same clock."""
    settings = place(store)
    with ExitStack() as closing:
        servers = [closing.enter_context(RunningServer(**settings))]
        teller = HttpTeller(servers[0])

        def claims_of(queue: str) -> ClientClaims:
            return closing.enter_context(ClientClaims(servers[-1].endpoint, teller.url(queue)))

        def restart() -> None:
            servers[-1].stop()
            servers.append(closing.enter_context(RunningServer(**settings, clock=servers[-1].clock)))
            teller.go_on_with(servers[-1])

        play(told, ClaimTeller(teller, claims_of, restart))


# The language of the stories about claims: what is in it is read, and what is not is an error.


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("open s on jobs -> epoch 2", Open("s", "jobs", "", False, None, None, 2)),
        (
            "open s on jobs consumer c takeover lease 5 s hold 1 h -> taken",
            Open("s", "jobs", "c", True, 3_600, 5, "taken"),
        ),
        ("claim s 1 -> nothing", Claim("s", 1, 100, None, None, (0, 0, False))),
        ("claim s 1 up to 3 shards of 2 epoch 4 -> fenced", Claim("s", 1, 3, 2, 4, "fenced")),
        ("claim s 1 -> 1 message again", Claim("s", 1, 100, None, None, (1, 1, True))),
        ("claim s 1 -> 3 messages in 2 shards", Claim("s", 1, 100, None, None, (3, 2, False))),
        ("read s 1 shard 2 -> a count 2", Read("s", 1, 2, (Item("a", None, 2, None),))),
        ("read s 1 -> lost", Read("s", 1, 0, "lost")),
        ("beat s epoch 1 -> fenced", Look("s", True, 1, "fenced")),
        ("show s -> alive, 0 of 1: 1 open", Look("s", False, None, "alive, 0 of 1: 1 open")),
        ("acknowledge s 2 -> 2 lost 1, 2", Acknowledge("s", 2, None, (2, (1, 2)))),
        ("acknowledge s 2 epoch 1 -> gap", Acknowledge("s", 2, 1, "gap")),
        ("release s 1", Release("s", 1, None)),
        ("evict s 1 a -> not claimed", Evict("s", 1, "a", "not claimed")),
        ("close s -> unknown", Close("s", "unknown")),
        ("restart", Restart()),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_line_is_a_step(line: str, action: object) -> None:
    (step,) = read([f"{line} | 0 0 0"], FORMS)
    assert step.action == action


@pytest.mark.parametrize(
    "line",
    [
        "open s on jobs -> 1",
        "claim s 1",
        "claim s 1 -> 2",
        "claim s -> nothing",
        "acknowledge s 1 -> ok",
        "release s 1 -> ok",
        "close s -> gone",
        "restart now",
    ],
    ids=str,
)
def test_what_is_not_in_the_language_of_claims_is_an_error(line: str) -> None:
    with pytest.raises(StoryError):
        list(read([f"{line} | 0 0 0"], FORMS))


def test_the_page_tells_every_step() -> None:
    """A verb that no story uses is not in the language."""
    verbs = {step.text.partition(" ")[0] for story in CLAIM_STORIES for step in story.steps}
    assert set(FORMS) <= verbs
