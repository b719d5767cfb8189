"""Ages in words: they stand still between minutes, so that open pages have nothing to be told of what is old."""

import pytest

from veilmq.console.rendering import age


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        pytest.param(None, "–", id="nothing"),
        pytest.param(-0.4, "0 s", id="a clock that is ahead"),
        pytest.param(0.4, "0 s", id="just now"),
        pytest.param(59.9, "59 s", id="below a minute"),
        pytest.param(60.0, "1 min", id="a minute"),
        pytest.param(119.9, "1 min", id="still that minute"),
        pytest.param(5_459.0, "1 h 30 min", id="hours"),
        pytest.param(86_400.0, "1 d", id="a day"),
    ],
)
def test_an_age_changes_once_a_minute_after_the_first(seconds: float | None, words: str) -> None:
    assert age(seconds) == words
