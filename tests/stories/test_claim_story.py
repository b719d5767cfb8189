"""The language of the stories about claims: what is in it is read, and what is not is an error."""

import pytest

from tests.stories.claim_story import (
    FORMS,
    STORIES,
    Acknowledge,
    Claim,
    Close,
    Evict,
    Look,
    Open,
    Read,
    Release,
    Restart,
)
from tests.stories.story import Item, StoryError, read


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
def test_what_is_not_in_the_language_is_an_error(line: str) -> None:
    with pytest.raises(StoryError):
        list(read([f"{line} | 0 0 0"], FORMS))


def test_the_page_tells_every_step() -> None:
    """A verb that no story uses is not in the language."""
    verbs = {step.text.partition(" ")[0] for story in STORIES for step in story.steps}
    assert set(FORMS) <= verbs
