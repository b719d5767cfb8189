"""The words for what a server kept."""

import pytest

from benchmarks.keeps import verdict


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        pytest.param(0, "nothing", id="none"),
        pytest.param(99, "99 of 100", id="some"),
        pytest.param(100, "everything acknowledged", id="all"),
    ],
)
def test_the_verdict_says_how_much_of_what_was_acknowledged(kept: int, words: str) -> None:
    assert verdict(kept=kept, acknowledged=100) == words
