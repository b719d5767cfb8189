"""Run every story of docs/lifecycle.md and docs/protocols/claims.md on the engine and over the protocols."""

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from tests.conftest import EVERYTHING
from tests.stories.claim_story import FORMS, ClaimRunner, ClientClaims, EngineClaims
from tests.stories.claim_story import STORIES as CLAIM_STORIES
from tests.stories.over_http import SQS_ONLY, SmqRunner, SqsRunner
from tests.stories.story import PAGE, UNITS_MS, Action, Story, StoryError, play, read, stories
from tests.stories.through_engine import EngineRunner, StoreSettings, full, hosted
from veilmq.testing import RunningServer

STORIES = stories(PAGE.read_text(encoding="utf-8"))
_COMMAND_OPTIONS = {("stale_receipts", "act"): "any_receive"}  # setting of a server → option of its commands
STORES = [pytest.param("memory", marks=EVERYTHING), "folder", "postgres"]
SERVED = [("http", "folder"), ("smq", "folder")]  # in `make test`; the others only in `make test-all`
OTHERS = [("http", "memory"), ("http", "postgres"), ("smq", "memory"), ("smq", "postgres")]
WOKEN = [
    story
    for story in STORIES
    if any(step.action.verb == "poll" for step in story.steps)
    and not any(step.action.verb == "wait" and step.action.time_ms >= UNITS_MS["h"] for step in story.steps)
]
"""Stories with a poll that a notification of the database wakes."""


def _case(story: Story, protocol: str, store: str) -> Any:
    adds = (protocol, store) in SERVED or (story in WOKEN and (protocol, store) == ("http", "postgres"))
    return pytest.param(
        story, protocol, store, id=f"{story.title}-{protocol}-{store}", marks=() if adds else EVERYTHING
    )


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("story", STORIES, ids=lambda each: each.title)
def test_a_story_runs_on_the_engine(story: Story, store: str, store_settings: Callable[[str], StoreSettings]) -> None:
    with hosted(store_settings(store)) as host:
        play(story, EngineRunner(host, **{_COMMAND_OPTIONS[each]: True for each in story.server}))


@pytest.mark.parametrize(
    ("story", "protocol", "store"), [_case(story, *pair) for story in STORIES for pair in [*SERVED, *OTHERS]]
)
def test_a_story_runs_over_http(story: Story, protocol: str, store: str, serve: Callable[..., RunningServer]) -> None:
    server = serve(store, **dict(story.server))
    play(story, SqsRunner(server) if protocol == "http" else SmqRunner(server, story))


def test_the_page_explains_each_mark() -> None:
    assert re.findall(r"^\| `SQS: ([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(SQS_ONLY)


@pytest.mark.parametrize("story", STORIES, ids=lambda each: each.title)
def test_each_step_marked_for_sqs_is_one_that_smq_lacks(story: Story) -> None:
    for step in story.steps:
        assert not step.sqs_only or SQS_ONLY[step.sqs_only](step.action), step.text


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
def test_an_invalid_line_is_an_error(language: str, line: str) -> None:
    with pytest.raises(StoryError):
        list(read([line], LANGUAGES[language]))


def test_a_mark_is_read_from_behind_the_counters() -> None:
    marked, unmarked = read(["purge jobs | 0 0 0 | SQS: purge", "wait 1 s | 0 0 0"])
    assert (marked.action, marked.counts, marked.sqs_only) == (
        Action(verb="purge", queue="jobs", too_soon=None),
        ((0, 0, 0),),
        "purge",
    )
    assert unmarked.sqs_only == ""


def test_a_page_is_split_into_stories() -> None:
    page = "# One\n```story\nwait 1 s | none\n```\n```text\nanything\n```\n## Two\n```story\npurge a | 0 0 0\n```\n"
    found = stories(page)
    assert [story.title for story in found] == ["One", "Two"]
    assert [step.action for story in found for step in story.steps] == [
        Action(verb="wait", time_ms=1_000),
        Action(verb="purge", queue="a", too_soon=None),
    ]


def test_an_unterminated_story_is_an_error() -> None:
    with pytest.raises(StoryError):
        stories("```story\nwait 1 s | none\n")


def test_every_fenced_block_of_the_page_is_a_story() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = stories(text)
    fences = [line for line in text.splitlines() if line.startswith("```") and line != "```"]
    assert len(found) == len(fences) - fences.count("```mermaid") > 30
    assert len({story.title for story in found}) == len(found), "two stories with one title"


CLAIM_STORES = ("memory", "folder", "postgres")
RESTARTED = [story for story in CLAIM_STORIES if any(step.action.verb == "restart" for step in story.steps)]
CLAIM_CASES = [
    (story, store) for story in CLAIM_STORIES for store in CLAIM_STORES if store != "memory" or story not in RESTARTED
]


CLAIM_SERVED = [pytest.param("memory", marks=EVERYTHING), "folder", pytest.param("postgres", marks=EVERYTHING)]


def name(value: Story | str) -> str:
    return value if isinstance(value, str) else value.title


@pytest.mark.parametrize(("story", "store"), CLAIM_CASES, ids=name)
def test_a_claim_story_runs_on_the_engine(
    story: Story, store: str, store_settings: Callable[[str], StoreSettings]
) -> None:
    with hosted(store_settings(store)) as host:
        play(story, ClaimRunner(EngineRunner(host), lambda queue: EngineClaims(host, full(queue)), host.reopen))


@pytest.mark.parametrize("store", CLAIM_SERVED)
@pytest.mark.parametrize("story", [story for story in CLAIM_STORIES if story not in RESTARTED], ids=name)
def test_a_claim_story_runs_over_http(story: Story, store: str, serve: Callable[[str], RunningServer]) -> None:
    server = serve(store)
    with ExitStack() as closing:
        runner = SqsRunner(server)

        def claims_of(queue: str) -> ClientClaims:
            return closing.enter_context(ClientClaims(server.endpoint, runner.url(queue)))

        play(story, ClaimRunner(runner, claims_of, restart=pytest.fail))


@pytest.mark.parametrize("store", CLAIM_STORES[1:])
@pytest.mark.parametrize("story", RESTARTED, ids=name)
def test_a_claim_story_with_a_restart_runs_over_http(
    story: Story, store: str, store_settings: Callable[[str], StoreSettings]
) -> None:
    settings = store_settings(store)
    with ExitStack() as closing:
        servers = [closing.enter_context(RunningServer(**settings))]
        runner = SqsRunner(servers[0])

        def claims_of(queue: str) -> ClientClaims:
            return closing.enter_context(ClientClaims(servers[-1].endpoint, runner.url(queue)))

        def restart() -> None:
            servers[-1].stop()
            servers.append(closing.enter_context(RunningServer(**settings, clock=servers[-1].clock)))
            runner.reconnect(servers[-1])

        play(story, ClaimRunner(runner, claims_of, restart))


def test_the_claim_stories_use_every_step() -> None:
    verbs = {step.text.partition(" ")[0] for story in CLAIM_STORIES for step in story.steps}
    assert set(FORMS) <= verbs
