"""The language of the stories: what is in it is read, and what is not is an error, not a step left out."""

import pytest

from tests.stories.story import (
    PAGE,
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
    read,
    stories,
)


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
