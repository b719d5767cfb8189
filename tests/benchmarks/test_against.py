"""This checkout against another commit: what is checked out, what the load looks like, and what is made of turns."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import wrk
from benchmarks.against import WORKLOADS, AgainstError, Compared, checked_out
from benchmarks.servers import CHECKOUT
from benchmarks.wrk import SCRIPTS, Load
from tests.conftest import need

VARYING = {"x-amz-date", "authorization", "amz-sdk-invocation-id"}


def test_the_ratio_is_the_median_of_the_ratios_of_the_pairs() -> None:
    compared = Compared(row="send", workload="send", figure="requests/s", there=[100, 50, 200], here=[110, 60, 100])
    assert compared.ratio() == pytest.approx(1.1)


def test_what_was_not_measured_has_no_ratio() -> None:
    assert Compared(row="send", workload="send", figure="", trouble="failed").ratio() is None


def test_a_commit_is_checked_out_beside_this_one_and_removed_afterwards() -> None:
    need((CHECKOUT / ".git").exists(), "a checkout of git")
    with checked_out("HEAD") as path:
        assert path != CHECKOUT
        assert (path / "src" / "veilmq" / "__main__.py").exists()
    assert not path.parent.exists()


def test_an_unknown_commit_is_named() -> None:
    need((CHECKOUT / ".git").exists(), "a checkout of git")
    with pytest.raises(AgainstError, match="no-such-commit"), checked_out("no-such-commit"):
        pass


def test_each_row_has_its_scripts() -> None:
    for comparison in WORKLOADS.values():
        assert all((SCRIPTS / f"{workload.script}.lua").exists() for workload in comparison.workloads)


def test_requests_have_the_heads_of_an_sdk_of_which_three_headers_differ() -> None:
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
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        load = Load(script="send", seconds=1, connections=1, environment={"BENCH_HEADS": "sdk"})
        wrk.run(load, url=f"http://127.0.0.1:{server.server_address[1]}/")
        server.shutdown()
    assert len(seen[0]) == 11  # ten, and the length of the body
    differing = {name for one in seen for name, value in one.items() if value != seen[0][name]}
    assert {"authorization", "amz-sdk-invocation-id"} <= differing <= VARYING
    assert len({one["amz-sdk-invocation-id"] for one in seen}) == len(seen)
