"""`veilmq pipeline` and `veilmq demo`: what they say when something is missing or asked wrongly."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Veilmq, environment
from tests.proofs.forking import IMPORTED, run
from veilmq.client import HttpQueueClient

WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None; from veilmq.cli import main; sys.exit(main(sys.argv[1:]))"


def without(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `veilmq` where `module` is not installed; what a fork has imported is there."""
    command = [sys.executable, "-c", WITHOUT, module, *words]
    if module not in IMPORTED:
        pipe = subprocess.PIPE
        return run(command, env=environment(), stdout=pipe, stderr=pipe, text=True, timeout=60)
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("pyspark", ["pipeline", "report", "--state", "s", "--to", "r.html"], "spark"),
        ("pyspark", ["demo"], "spark"),
        ("apsw", ["demo"], "server"),
    ],
)
def test_an_extra_that_is_missing_is_named(module: str, words: list[str], extra: str) -> None:
    """In one line, before anything is started."""
    done = without(module, *words)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert f"pip install 'veilmq[{extra}]'" in done.stderr


@pytest.mark.parametrize("words", [["demo"], ["pipeline", "report", "--state", "s", "--to", "r.html"]])
def test_java_that_is_missing_is_told_in_one_line(
    veilmq: Veilmq, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With what to install; and nothing has been started or made."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    done = veilmq(*words)
    assert done.code == 1
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert "Java 17 or newer" in done.err
    assert "install" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["archive", "orders", "--table", "t", "--master", "local", "--remote", "sc://x"], "give only one of them"),
        (["archive", "orders", "--table", "t", "--conf", "spark.x"], "must be NAME=VALUE"),
        (["archive", "orders", "--table", "t", "--batch", "0"], "from 1 to 1000000"),
        (["archive", "--table", "t"], "QUEUES"),
        (["route", "orders", "--table", "none.json", "--checkpoint", "c"], "not a routing table"),
        (["tune", "--events", "e", "--state", "s", "--quantile", "1"], "less than 0.9999"),
        (["tune", "--events", "e", "--state", "s", "--map-tasks", "0"], "from 1 to 10000"),
        (["tune", "--events", "e", "--state", "s3a://b/s", "--apply"], "--record is required"),
    ],
)
def test_what_is_asked_wrongly_is_told(veilmq: Veilmq, client: HttpQueueClient, words: list[str], says: str) -> None:
    """Exit code 2, one line, nothing done."""
    client.create_queue("orders")
    done = veilmq("pipeline", *words)
    assert done.code == 2, done.err
    assert says in done.err
    assert done.err.count("\n") == 1
    assert client.show("orders").queue == "orders"


def test_a_table_that_cannot_forward_is_refused(veilmq: Veilmq, client: HttpQueueClient, tmp_path: Path) -> None:
    """Exit code 1, before any queue is made."""
    client.create_queue("orders")
    table = tmp_path / "table.json"
    table.write_text('{"version": 1, "default": 0, "classes": [{"name": "x", "visibility_timeout_s": 1}]}')
    done = veilmq("pipeline", "route", "orders", "--table", str(table), "--checkpoint", "c", "--create")
    assert done.code == 1
    assert "names no queue" in done.err
    assert client.list_queues() == ["orders"]
