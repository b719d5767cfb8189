"""What is made of measured rates: when a ceiling is none, and by ten against one by one."""

import pytest

from benchmarks.rates import CYCLE, DELETE, RECEIVE, SEND, Measured, Workload, by_ten, quiet, refusal
from benchmarks.row import Row, Section
from benchmarks.wrk import LoadResult


def ceiling(*, requests: int = 100_000, cores: float = 0.97) -> Measured:
    load = LoadResult(
        requests=requests,
        duration_s=1.0,
        p50_ms=1.0,
        p99_ms=1.0,
        errors={"status": 0},
        counts={},
        load_cores=1.0,
    )
    return Measured(load=load, messages_per_s=0.0, server_cores=cores, rss_bytes=0, connections=64, trouble="")


def test_two_like_ceilings_with_a_core_each_say_nothing() -> None:
    assert list(quiet([ceiling(), ceiling(requests=110_000)])) == []


def test_a_ceiling_kept_from_its_core_is_named() -> None:
    assert "got 0.48 cores" in "".join(quiet([ceiling(), ceiling(cores=0.48)]))


def test_ceilings_that_differ_are_named() -> None:
    assert "100,000 before and 150,000 after" in "".join(quiet([ceiling(), ceiling(requests=150_000)]))


def load(**counts: int) -> LoadResult:
    every = dict.fromkeys(("sent", "receives", "received", "deletes", "deleted", "short", "refused", "spent"), 0)
    return LoadResult(
        requests=1_000,
        duration_s=1.0,
        p50_ms=1.0,
        p99_ms=1.0,
        errors={"status": 0},
        counts=every | counts,
        load_cores=0.5,
    )


@pytest.mark.parametrize(
    ("workload", "result"),
    [
        pytest.param(SEND, load(), id="sends"),
        pytest.param(RECEIVE, load(received=995, short=5), id="a few empty receives"),
        pytest.param(DELETE, load(deletes=1_000), id="deletes"),
        pytest.param(CYCLE, load(receives=333, received=300, deletes=300), id="receives under way at the end"),
    ],
)
def test_plain_success_is_a_figure(workload: Workload, result: LoadResult) -> None:
    assert refusal(workload, result, connections=64) is None


@pytest.mark.parametrize(
    ("workload", "result", "why"),
    [
        pytest.param(CYCLE, load(), "no message was moved", id="answers that move nothing"),
        pytest.param(DELETE, load(deletes=900, spent=100), "100 deletes were repeats", id="handles ran out"),
        pytest.param(RECEIVE, load(received=500, short=500), "came back empty", id="the queue ran dry"),
        pytest.param(
            CYCLE, load(receives=333, received=200, deletes=200), "came back empty", id="no message for a send"
        ),
    ],
)
def test_what_is_no_work_done_is_refused(workload: Workload, result: LoadResult, why: str) -> None:
    assert why in str(refusal(workload, result, connections=64))


def rate(figure: str, unit: str, value: float | str) -> Section:
    return Section(name=figure, rows=(Row(figure=figure, unit=unit, values={"veilmq": value}),))


@pytest.mark.parametrize(
    ("one", "expected"),
    [pytest.param(20_000.0, 3.0, id="measured"), pytest.param("failed: x", "not measured", id="failed")],
)
def test_by_ten_is_messages_over_messages(one: float | str, expected: float | str) -> None:
    section = by_ten([rate("send", "requests/s", one), rate("send by ten", "messages/s", 60_000.0)])
    assert section is not None
    assert [row.values for row in section.rows] == [{"veilmq": expected}]


def test_one_half_alone_is_no_comparison() -> None:
    assert by_ten([rate("send", "requests/s", 1.0)]) is None
