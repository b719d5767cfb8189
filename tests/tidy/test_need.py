"""A service that is missing skips a test on a laptop and fails it in CI."""

import pytest

from tests.conftest import need


@pytest.mark.parametrize("ci", ["", "0", "false"])
def test_a_missing_service_skips_on_a_laptop(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    """Without CI the test is skipped, and told what is missing."""
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="needs a unicorn"):
        need(None, "a unicorn")


def test_a_missing_service_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI the test fails, and says what is missing."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs a unicorn"):
        need(False, "a unicorn")


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_service_that_is_there_lets_the_test_run(monkeypatch: pytest.MonkeyPatch, ci: str) -> None:
    """What is there is never complained about."""
    monkeypatch.setenv("CI", ci)
    need("/usr/bin/unicorn", "a unicorn")
