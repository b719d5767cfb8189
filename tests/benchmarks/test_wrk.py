"""Reading what wrk printed."""

import pytest

from benchmarks.wrk import LoadError, parse

COUNTS = '"sent":10,"receives":9,"received":8,"deletes":8,"deleted":0,"short":1,"refused":0,"spent":0'


def report(*, requests: int = 300, status: int = 0, duration_us: int = 2_000_000) -> str:
    errors = f'"errors_connect":0,"errors_read":1,"errors_write":0,"errors_status":{status},"errors_timeout":0'
    head = f'"requests":{requests},"duration_us":{duration_us},"p50_us":1500,"p99_us":9000,"max_us":9100'
    return f"Running 2s test @ http://127.0.0.1:1/\n  2 threads\nBENCH {{{head},{errors},{COUNTS}}}\n"


def test_rates_latencies_errors_and_counts_are_read_in_their_units() -> None:
    result = parse(report(), cpu_s=1.5)
    assert result.requests_per_s == 150.0
    assert (result.p50_ms, result.p99_ms) == (1.5, 9.0)
    assert result.errors == {"connect": 0, "read": 1, "write": 0, "status": 0, "timeout": 0}
    assert result.count_per_s("deletes") == 4.0
    assert result.load_cores == 0.75


def test_a_refused_request_is_no_work_done() -> None:
    assert parse(report(requests=300, status=100), cpu_s=0.0).requests_per_s == 100.0


def test_no_time_is_no_rate() -> None:
    assert parse(report(duration_us=0), cpu_s=1.0).requests_per_s == 0.0


@pytest.mark.parametrize("output", ["unable to connect to 127.0.0.1:1", report() + report()], ids=["none", "two"])
def test_anything_but_one_report_is_an_error_that_shows_what_wrk_said(output: str) -> None:
    with pytest.raises(LoadError, match=r"reports, expected one.*\n"):
        parse(output, cpu_s=0.0)
