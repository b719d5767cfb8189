"""The benchmarks: options, workloads, measurements, tables, and the output of wrk."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import wrk
from benchmarks.against import ROWS, AgainstError, Figure, _line, checked_out
from benchmarks.backlog import curves, sizes
from benchmarks.dialogue import Dialogue, DialogueError, converse, request
from benchmarks.groups import _entries
from benchmarks.keeps import verdict
from benchmarks.kinds import LOGGED_PAIRS, PAIRS, STANDARD
from benchmarks.options import arguments, settings
from benchmarks.process import Process, free_port, running
from benchmarks.rates import CYCLE, DELETE, RECEIVE, SEND, Measured, Workload, by_ten, quiet, refusal
from benchmarks.ready_made import batch
from benchmarks.row import Row, Section, failed
from benchmarks.servers import CEILING, CHECKOUT, IN_MEMORY
from benchmarks.smq import PAIRS as SMQ_PAIRS
from benchmarks.stock import EMPTY_MAX, Budget, first_handle, handles
from benchmarks.streams import Batch, _full
from benchmarks.table import cell, cells, columns, reasons, render
from benchmarks.wrk import SCRIPTS, Load, LoadError, LoadResult, parse
from tests.conftest import need
from veilmq.wire.v1 import arrow


def test_options_have_defaults() -> None:
    assert settings(arguments([])).backlog_max == 100_000
    assert settings(arguments(["--whole"])).backlog_max == 3_000_000
    assert settings(arguments(["--whole", "--backlog", "5000"])).backlog_max == 5_000
    assert settings(arguments(["--work", "somewhere"])).work == Path("somewhere").resolve()
    assert arguments(["--against", "HEAD", "--only", "waiting"]).turns == 3
    assert arguments(["--against", "HEAD", "--turns", "7"]).turns == 7


@pytest.mark.parametrize(
    ("given", "named"),
    [
        *(("--seconds 0", "--seconds"), ("--seconds x", "--seconds"), ("--connections 0", "--connections")),
        *(("--backlog -5", "--backlog"), ("--only nothing", "--only")),
        *(("--only waiting", "choose from"), ("--only idle --against HEAD", "choose from")),
    ],
)
def test_the_error_of_an_invalid_option_names_it(given: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(given.split())
    assert named in capsys.readouterr().err


# Comparisons with another commit.


VARYING = {"x-amz-date", "authorization", "amz-sdk-invocation-id"}


def test_the_ratio_of_a_comparison_is_the_median_of_its_pairs() -> None:
    pairs = [(Figure(old, 8, 1, 4), Figure(new, 4, 2, 1)) for old, new in ((100, 110), (50, 60), (200, 100))]
    assert _line("send", "sends", pairs) == (
        "| send | sends | 100 | 100 | 1.10 | 0.50–1.20 | 0.50 | 2.00 | 0.25 | 1.10 1.20 0.50 |"
    )


def test_a_checkout_of_a_commit_is_removed_afterwards() -> None:
    need((CHECKOUT / ".git").exists(), "a checkout of git")
    with checked_out("HEAD") as path:
        assert path != CHECKOUT
        assert (path / "src" / "veilmq" / "__main__.py").exists()
    assert not path.parent.exists()
    with pytest.raises(AgainstError, match="no-such-commit"), checked_out("no-such-commit"):
        pass


def test_each_workload_has_a_script() -> None:
    for row in ROWS.values():
        assert all((SCRIPTS / f"{workload.script}.lua").exists() for workload in row.workloads)


def test_requests_have_the_headers_of_an_sdk_and_three_of_them_vary() -> None:
    need(wrk.installed(), "wrk (scripts/install-wrk.sh)")
    seen: list[dict[str, str]] = []

    class Recorder(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load = Load(script="send", seconds=1, connections=1, environment={"BENCH_HEADS": "sdk"})
        wrk.run(load, url=f"http://127.0.0.1:{server.server_address[1]}/")
        server.shutdown()
    assert len(seen[0]) == 11  # ten of the SDK and Content-Length
    differing = {name for one in seen for name, value in one.items() if value != seen[0][name]}
    assert {"authorization", "amz-sdk-invocation-id"} <= differing <= VARYING
    assert len({one["amz-sdk-invocation-id"] for one in seen}) == len(seen)


# Backlogs.


def test_the_sizes_of_backlogs_grow_tenfold_to_the_maximum() -> None:
    assert sizes(1_000) == [1_000]
    assert sizes(100_000) == [1_000, 10_000, 100_000]
    assert sizes(3_000_000) == [1_000, 10_000, 100_000, 1_000_000, 3_000_000]


def test_each_kind_of_backlog_has_a_curve() -> None:
    point = {"kind": "waiting", "messages": 1_000, "pair_us": 80.0}
    sections = [Section(name="send", rows=()), Section(name="backlog", rows=(), raw={"points": [point]})]
    assert curves(sections) == {"waiting": [(1_000, 80.0)]}


def test_the_verdict_of_a_crash_has_the_number_of_kept_messages() -> None:
    for kept, text in ((0, "nothing"), (99, "99 of 100"), (100, "everything acknowledged")):
        assert verdict(kept=kept, acknowledged=100) == text


# Kinds of queues.


def test_the_queues_of_each_kind_have_valid_distinct_names() -> None:
    kinds = [STANDARD, *(kind for kind, _ in (*PAIRS, *LOGGED_PAIRS))]
    assert len({kind.queue(turn) for kind in kinds for turn in range(2)}) == 2 * len(kinds)
    assert all(kind.queue(0).endswith(".fifo") == ("FifoQueue" in kind.attributes) for kind in kinds)
    assert STANDARD.environment == {}, "its requests are constant"


def test_the_entries_of_a_run_have_distinct_deduplication_ids() -> None:
    names = [f"g{n % 3}" for n in range(25)]
    entries = [entry for start in range(0, 25, 10) for entry in _entries(names, start, "run")]
    assert [entry["MessageGroupId"] for entry in entries] == names
    assert len({entry["MessageDeduplicationId"] for entry in entries}) == 25


# Rates.


def ceiling(*, requests: int = 100_000, cores: float = 0.97) -> Measured:
    times = {"duration_s": 1.0, "p50_ms": 1.0, "p99_ms": 1.0, "load_cores": 1.0}
    load = LoadResult(requests=requests, errors={"status": 0}, counts={}, **times)
    return Measured(load=load, messages_per_s=0.0, server_cores=cores, rss_bytes=0, connections=64, trouble="")


@pytest.mark.parametrize(
    ("second", "error"),
    [
        (ceiling(requests=110_000), ""),
        (ceiling(cores=0.48), "got 0.48 cores"),
        (ceiling(requests=150_000), "100,000 before and 150,000 after"),
    ],
    ids=["alike", "without a core", "different"],
)
def test_a_noisy_ceiling_is_reported(second: Measured, error: str) -> None:
    found = "".join(quiet([ceiling(), second]))
    assert error in found
    assert bool(error) is bool(found)


def load(**counts: int) -> LoadResult:
    every = dict.fromkeys(("sent", "receives", "received", "deletes", "deleted", "short", "refused", "spent"), 0)
    times = {"duration_s": 1.0, "p50_ms": 1.0, "p99_ms": 1.0, "load_cores": 0.5}
    return LoadResult(requests=1_000, errors={"status": 0}, counts=every | counts, **times)


@pytest.mark.parametrize(
    ("workload", "result", "why"),
    [
        pytest.param(SEND, load(), None, id="sends"),
        pytest.param(RECEIVE, load(received=995, short=5), None, id="a few empty receives"),
        pytest.param(DELETE, load(deletes=1_000), None, id="deletes"),
        pytest.param(CYCLE, load(receives=333, received=300, deletes=300), None, id="receives under way at the end"),
        pytest.param(CYCLE, load(), "no message was moved", id="answers that move nothing"),
        pytest.param(DELETE, load(deletes=900, spent=100), "100 deletes were repeats", id="handles ran out"),
        pytest.param(RECEIVE, load(received=500, short=500), "came back empty", id="the queue ran dry"),
        pytest.param(CYCLE, load(receives=333, received=200, deletes=200), "came back empty", id="none for a send"),
    ],
)
def test_only_completed_work_counts_as_a_rate(workload: Workload, result: LoadResult, why: str | None) -> None:
    found = refusal(workload, result, connections=64)
    assert found is None if why is None else why in str(found)


def rate(figure: str, unit: str, value: float | str) -> Section:
    return Section(name=figure, rows=(Row(figure=figure, unit=unit, values={"veilmq": value}),))


@pytest.mark.parametrize(("one", "expected"), [(20_000.0, 3.0), ("failed: x", "not measured")])
def test_the_gain_of_batches_is_a_ratio_of_messages(one: float | str, expected: float | str) -> None:
    section = by_ten([rate("send", "requests/s", one), rate("send by ten", "messages/s", 60_000.0)])
    assert section is not None
    assert [row.values for row in section.rows] == [{"veilmq": expected}]
    assert by_ten([rate("send", "requests/s", one)]) is None


# Workloads over SMQ.


def test_each_workload_of_sqs_has_its_counterpart_in_smq() -> None:
    for sqs, smq in SMQ_PAIRS:
        assert smq.figure == f"SMQ, {sqs.figure}"
        assert smq.script == f"smq_{sqs.script}"
        assert (SCRIPTS / f"{smq.script}.lua").exists()


# Dialogues.


def test_a_budget_is_spent_and_refunded_a_limited_number_of_times() -> None:
    budget = Budget(left=25)
    assert [budget.take(10) for _ in range(4)] == [10, 10, 5, 0]
    budget.put_back(3)
    assert budget.take(10) == 3
    for _ in range(EMPTY_MAX - 1):
        budget.put_back(1)
    with pytest.raises(DialogueError, match="fewer messages than were waiting"):
        budget.put_back(1)


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (b'{"Messages":[{"ReceiptHandle":"one"},{"ReceiptHandle":"two"}]}', ["one", "two"]),
        (b'{"Messages":[{"ReceiptHandle": "one"},{"ReceiptHandle": "two"}]}', ["one", "two"]),
        *((empty, []) for empty in (b"{}", b"", b'{"Messages":[]}')),
    ],
)
def test_handles_are_found_in_replies_with_any_white_space(reply: bytes, found: list[str]) -> None:
    assert handles(reply) == found
    assert first_handle(reply) == (b"one" if found else None)


@pytest.fixture
def ceiling_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    with running(CEILING.command(port, 0, tmp_path_factory.mktemp("ceiling"))) as process:
        assert isinstance(process, Process)
        yield port


def test_the_ceiling_replies_to_each_request_of_each_connection(ceiling_port: int) -> None:
    replies: list[bytes] = []

    def dialogue() -> Dialogue:
        for _ in range(5):
            reply = yield request("SendMessage", MessageBody="x" * 70_000)
            replies.append(reply)

    assert converse(port=ceiling_port, dialogues=[dialogue() for _ in range(3)], timeout_s=30.0) > 0
    assert replies == [b"{}"] * 15


# Micro-batches of Spark.


def _progress(rows: int, whole_ms: int, query_ms: int) -> dict[str, object]:
    return {"numInputRows": rows, "durationMs": {"triggerExecution": whole_ms, "addBatch": query_ms}}


def test_only_full_batches_count() -> None:
    progress = [_progress(10, 900, 500), _progress(3, 100, 50), _progress(0, 20, 1), _progress(10, 800, 400)]
    assert _full(progress, 10) == [Batch(rows=10, whole_s=0.9, query_s=0.5), Batch(rows=10, whole_s=0.8, query_s=0.4)]


def test_ready_made_rows_have_the_columns_of_the_source() -> None:
    made = batch(7)
    assert made.num_rows == 7
    assert made.schema.names == arrow.SCHEMA.names


# Tables.


RATE = Row(
    figure="send",
    unit="requests/s",
    values={"moto[server]": 100.0, "veilmq": 20_000.0, "ceiling": 50_000.0, "ministack": "not installed: no module x"},
    compare=True,
    note="a note",
)
LATENCY = Row(figure="send", unit="p99 ms", values={"veilmq": 4.0, "ceiling": 1.0})
MISSING = {"moto[server]": "nothing", "ministack": "not installed: no module x"}
KEPT = Row(figure="kept after kill -9", unit="of 100", values=MISSING)
SECTIONS = (Section(name="kept", rows=(KEPT,)), Section(name="send", rows=(RATE, LATENCY)))


def test_a_rate_has_a_share_of_the_ceiling_and_a_ratio_to_each_peer() -> None:
    """A latency has neither, and veilmq is not a peer."""
    assert (RATE.of_ceiling(), RATE.over_peers()) == (0.4, {"moto[server]": 200.0})
    assert (LATENCY.of_ceiling(), LATENCY.over_peers()) == (None, {})
    ours = Row(figure="send", unit="requests/s", values={"veilmq": 2.0, IN_MEMORY.name: 4.0}, compare=True)
    assert ours.over_peers() == {}
    for ceiling in (0.0, "failed: no reason"):
        row = Row(figure="send", unit="requests/s", values={"veilmq": 1.0, "ceiling": ceiling}, compare=True)
        assert row.of_ceiling() is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((23_456.7, "23,457"), (12.34, "12.3"), (0.414, "0.41"), (None, "")),
        *(("nothing", "nothing"), ("failed: a long story", "failed")),
    ],
)
def test_a_cell_has_significant_digits(value: float | str | None, text: str) -> None:
    assert cell(value) == text


def test_the_ceiling_and_veilmq_come_before_the_peers() -> None:
    assert columns(SECTIONS) == ["ceiling", "veilmq", "moto[server]", "ministack"]


def test_a_row_has_a_figure_a_unit_values_a_share_and_notes() -> None:
    texts = cells(RATE, ["ceiling", "veilmq", "moto[server]"])
    assert texts == ["send", "requests/s", "50,000", "20,000", "100", "0.40", "200 × moto[server]\na note"]
    assert reasons((*SECTIONS, *SECTIONS)) == ["ministack, all: not installed: no module x"]


def test_the_head_of_a_column_has_the_name_and_durability_of_the_server() -> None:
    console = Console(width=170)
    with console.capture() as capture:
        console.print(render(SECTIONS, title="title"))
    assert "moto[server]" in capture.get()
    assert "keeps nothing" in capture.get()
    assert "keeps not installed" not in capture.get()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("it ended: Traceback\n  File\nImportError: x", "failed: it ended: Traceback … ImportError: x"),
        ("one line", "failed: one line"),
        ("", "failed: ValueError"),
    ],
)
def test_a_failure_is_shown_by_its_first_and_last_lines(error: str, text: str) -> None:
    assert failed(ValueError(error) if error else ValueError()) == text


# The output of wrk.


COUNTS = '"sent":10,"receives":9,"received":8,"deletes":8,"deleted":0,"short":1,"refused":0,"spent":0'


def report(*, requests: int = 300, status: int = 0, duration_us: int = 2_000_000) -> str:
    errors = f'"errors_connect":0,"errors_read":1,"errors_write":0,"errors_status":{status},"errors_timeout":0'
    head = f'"requests":{requests},"duration_us":{duration_us},"p50_us":1500,"p99_us":9000,"max_us":9100'
    return f"Running 2s test @ http://127.0.0.1:1/\n  2 threads\nBENCH {{{head},{errors},{COUNTS}}}\n"


def test_the_report_of_wrk_is_converted_to_rates_latencies_and_errors() -> None:
    result = parse(report(), cpu_s=1.5)
    assert (result.requests_per_s, result.p50_ms, result.p99_ms) == (150.0, 1.5, 9.0)
    assert result.errors == {"connect": 0, "read": 1, "write": 0, "status": 0, "timeout": 0}
    assert (result.count_per_s("deletes"), result.load_cores) == (4.0, 0.75)
    assert parse(report(requests=300, status=100), cpu_s=0.0).requests_per_s == 100.0, "errors do not count"
    assert parse(report(duration_us=0), cpu_s=1.0).requests_per_s == 0.0


@pytest.mark.parametrize("output", ["unable to connect to 127.0.0.1:1", report() + report()], ids=["none", "two"])
def test_output_without_exactly_one_report_is_an_error(output: str) -> None:
    with pytest.raises(LoadError, match=r"reports, expected one.*\n"):
        parse(output, cpu_s=0.0)
