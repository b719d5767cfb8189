"""The options of `python -m benchmarks`."""

from pathlib import Path

import pytest

from benchmarks.options import arguments, settings


def test_a_plain_run_goes_up_to_a_hundred_thousand_and_a_whole_one_to_three_million() -> None:
    assert settings(arguments([])).backlog_max == 100_000
    assert settings(arguments(["--whole"])).backlog_max == 3_000_000
    assert settings(arguments(["--whole", "--backlog", "5000"])).backlog_max == 5_000


def test_the_data_lies_in_an_absolute_folder() -> None:
    assert settings(arguments(["--work", "somewhere"])).work == Path("somewhere").resolve()


@pytest.mark.parametrize(
    "given",
    [["--only", "waiting"], ["--only", "idle", "--against", "HEAD"]],
    ids=["a row of --against alone", "no row of --against"],
)
def test_a_row_that_cannot_be_measured_so_is_named(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(given)
    assert "choose from" in capsys.readouterr().err


def test_a_comparison_takes_at_least_five_turns_unless_other_is_asked_for() -> None:
    assert arguments(["--against", "HEAD", "--only", "waiting"]).turns == 5
    assert arguments(["--against", "HEAD", "--turns", "7"]).turns == 7


@pytest.mark.parametrize(
    "given",
    [["--seconds", "0"], ["--seconds", "x"], ["--connections", "0"], ["--backlog", "-5"], ["--only", "nothing"]],
    ids=" ".join,
)
def test_an_option_out_of_range_is_named(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(given)
    assert given[0] in capsys.readouterr().err
