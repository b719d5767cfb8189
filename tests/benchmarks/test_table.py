"""The texts of the table, and the arithmetic between its columns."""

import pytest
from rich.console import Console

from benchmarks.row import Row, Section, failed
from benchmarks.servers import IN_MEMORY
from benchmarks.table import cell, cells, columns, reasons, render

RATE = Row(
    figure="send",
    unit="requests/s",
    values={
        "moto[server]": 100.0,
        "veilmq": 20_000.0,
        "ceiling": 50_000.0,
        "ministack": "not installed: no module x",
    },
    compare=True,
    note="a note",
)
LATENCY = Row(figure="send", unit="p99 ms", values={"veilmq": 4.0, "ceiling": 1.0})
KEPT = Row(
    figure="kept after kill -9",
    unit="of 100",
    values={"moto[server]": "nothing", "ministack": "not installed: no module x"},
)
SECTIONS = (Section(name="kept", rows=(KEPT,)), Section(name="send", rows=(RATE, LATENCY)))


def test_a_rate_has_its_share_of_the_ceiling_and_its_ratio_to_each_measured_peer() -> None:
    assert RATE.of_ceiling() == 0.4
    assert RATE.over_peers() == {"moto[server]": 200.0}


def test_veilmq_itself_is_no_peer() -> None:
    row = Row(figure="send", unit="requests/s", values={"veilmq": 2.0, IN_MEMORY.name: 4.0}, compare=True)
    assert row.over_peers() == {}


def test_a_latency_is_not_compared() -> None:
    assert LATENCY.of_ceiling() is None
    assert LATENCY.over_peers() == {}


@pytest.mark.parametrize("ceiling", [0.0, "failed: no reason"], ids=["zero", "failed"])
def test_there_is_no_share_of_a_ceiling_that_was_not_measured(ceiling: float | str) -> None:
    row = Row(figure="send", unit="requests/s", values={"veilmq": 1.0, "ceiling": ceiling}, compare=True)
    assert row.of_ceiling() is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(23_456.7, "23,457", id="thousands"),
        pytest.param(12.34, "12.3", id="tens"),
        pytest.param(0.414, "0.41", id="below ten"),
        pytest.param("nothing", "nothing", id="words"),
        pytest.param("failed: a long story", "failed", id="reason"),
        pytest.param(None, "", id="none"),
    ],
)
def test_a_cell_has_the_digits_that_it_deserves(value: float | str | None, text: str) -> None:
    assert cell(value) == text


def test_the_ceiling_and_veilmq_come_before_the_peers() -> None:
    assert columns(SECTIONS) == ["ceiling", "veilmq", "moto[server]", "ministack"]


def test_a_row_is_figure_unit_values_share_and_notes() -> None:
    texts = cells(RATE, ["ceiling", "veilmq", "moto[server]"])
    assert texts == ["send", "requests/s", "50,000", "20,000", "100", "0.40", "200 × moto[server]\na note"]


def test_why_a_cell_has_no_number_is_said_once_below() -> None:
    assert reasons((*SECTIONS, *SECTIONS)) == ["ministack, all: not installed: no module x"]


def test_the_head_of_a_column_says_what_the_server_keeps_and_brackets_survive() -> None:
    console = Console(width=170)
    with console.capture() as capture:
        console.print(render(SECTIONS, title="title"))
    assert "moto[server]" in capture.get()
    assert "keeps nothing" in capture.get()
    assert "keeps not installed" not in capture.get()


def test_a_failure_is_told_by_its_first_and_its_last_line() -> None:
    assert (
        failed(ValueError("it ended: Traceback\n  File\nImportError: x"))
        == "failed: it ended: Traceback … ImportError: x"
    )
    assert failed(ValueError("one line")) == "failed: one line"
    assert failed(ValueError()) == "failed: ValueError"
