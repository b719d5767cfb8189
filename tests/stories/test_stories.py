"""Every story of docs/lifecycle.md, through the engine port, SQS and SMQ, each on every store."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import EVERYTHING
from tests.stories.claim_story import FORMS, ClaimTeller, ClientClaims, EngineClaims
from tests.stories.claim_story import STORIES as CLAIM_STORIES
from tests.stories.over_http import SQS_ONLY, HttpTeller, SmqTeller
from tests.stories.story import PAGE, UNITS_MS, Action, Story, StoryError, play, read, stories
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
    if any(step.action.verb == "poll" for step in told.steps)
    and not any(step.action.verb == "wait" and step.action.time_ms >= UNITS_MS["h"] for step in told.steps)
]
"""What a server and a database do together: a notice of the one wakes a receive that waits in the other."""


def _telling(told: Story, door: str, store: str) -> Any:
    """Return a story with a protocol and a store, for `make test-all` unless the pair has something to add."""
    adds = (door, store) in SERVED or (told in WOKEN and (door, store) == ("http", "postgres"))
    return pytest.param(told, door, store, id=f"{told.title}-{door}-{store}", marks=() if adds else EVERYTHING)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_story_through_the_port(told: Story, store: str, place: Callable[[str], Place]) -> None:
    with hosted(place(store)) as host:
        play(told, EngineTeller(host, **{_AT_THE_PORT[each]: True for each in told.server}))


@pytest.mark.parametrize(
    ("told", "door", "store"), [_telling(told, *pair) for told in STORIES for pair in [*SERVED, *OTHERS]]
)
def test_story(told: Story, door: str, store: str, serve: Callable[..., RunningServer]) -> None:
    server = serve(store, **dict(told.server))
    play(told, HttpTeller(server) if door == "http" else SmqTeller(server, told))


def test_the_page_says_of_each_mark_what_it_means() -> None:
    assert re.findall(r"^\| `SQS: ([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(SQS_ONLY)


@pytest.mark.parametrize("told", STORIES, ids=lambda each: each.title)
def test_a_step_is_marked_where_smq_cannot_say_it(told: Story) -> None:
    for step in told.steps:
        assert not step.sqs_only or SQS_ONLY[step.sqs_only](step.action), step.text


# The language of the stories: what is in it is read, and what is not is an error, not a step left out.


LANGUAGES: dict[str, dict[str, str]] = {"messages": {}, "claims": FORMS}
WRONG = {
    "messages": [
        *("send jobs a", "send jobs a | 1 0", "send jobs a | 1 0 x", "| 0 0 0", "# remark | 0 0 0"),  # counters, step
        *("publish jobs a | 1 0 0", "send jobs | 1 0 0", "send jobs a2 to a2 | 1 0 0", "send jobs a to b | 1 0 0"),
        *("send jobs a delay 1 ms | 1 0 0", "wait 5 | 0 0 0", "receive jobs | 0 0 0", "receive jobs -> a as | 0 0 0"),
        *("delete r1 -> fine | 0 0 0", "delete r1 -> too long | 0 0 0", "purge jobs | 0 0 0 | purge"),
    ],
    "claims": [
        *("open s on jobs -> 1 | 0 0 0", "claim s 1 | 0 0 0", "claim s 1 -> 2 | 0 0 0", "claim s -> nothing | 0 0 0"),
        *("acknowledge s 1 -> ok | 0 0 0", "release s 1 -> ok | 0 0 0", "close s -> gone | 0 0 0"),
        "restart now | 0 0 0",
    ],
}


@pytest.mark.parametrize(("language", "line"), [(name, line) for name, lines in WRONG.items() for line in lines])
def test_what_is_not_in_the_language_is_an_error(language: str, line: str) -> None:
    """An unknown or unfinished line is never passed over."""
    with pytest.raises(StoryError):
        list(read([line], LANGUAGES[language]))


def test_a_mark_behind_the_counters_says_why_smq_cannot_say_it() -> None:
    marked, unmarked = read(["purge jobs | 0 0 0 | SQS: purge", "wait 1 s | 0 0 0"])
    assert (marked.action, marked.counts, marked.sqs_only) == (
        Action(verb="purge", queue="jobs", too_soon=None),
        ((0, 0, 0),),
        "purge",
    )
    assert unmarked.sqs_only == ""


def test_a_page_gives_its_stories() -> None:
    page = "# One\n```story\nwait 1 s | none\n```\n```text\nanything\n```\n## Two\n```story\npurge a | 0 0 0\n```\n"
    found = stories(page)
    assert [story.title for story in found] == ["One", "Two"]
    assert [step.action for story in found for step in story.steps] == [
        Action(verb="wait", time_ms=1_000),
        Action(verb="purge", queue="a", too_soon=None),
    ]


def test_a_story_without_an_end_is_an_error() -> None:
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
RESTARTED = [told for told in CLAIM_STORIES if any(step.action.verb == "restart" for step in told.steps)]
TOLD = [(told, store) for told in CLAIM_STORIES for store in CLAIM_STORES if store != "memory" or told not in RESTARTED]


CLAIM_SERVED = [pytest.param("memory", marks=EVERYTHING), "folder", pytest.param("postgres", marks=EVERYTHING)]
"""The stores of servers; on a database `make test` plays the story of a restart."""


def name(value: Story | str) -> str:
    return value if isinstance(value, str) else value.title


@pytest.mark.parametrize(("told", "store"), TOLD, ids=name)
def test_claim_story_through_the_port(told: Story, store: str, place: Callable[[str], Place]) -> None:
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


def test_the_page_tells_every_step() -> None:
    verbs = {step.text.partition(" ")[0] for story in CLAIM_STORIES for step in story.steps}
    assert set(FORMS) <= verbs
