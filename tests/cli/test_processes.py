"""`veilmq serve`, `veilmq worker` and `veilmq forward` as processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError as SqsError

from tests.cli.conftest import COMMAND, PIPES, Veilmq, command, environment
from tests.proofs.forking import Forked
from tests.server.keys import OWNER, REGION, SECRETS, TEXT, client, written
from tests.tidy.tree import ROOT
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Forwards
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer, SystemClock

Process = Forked | subprocess.Popen[str]
SERVER_EXTRA = ["apsw", "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"]
PLAIN = """
import sys
sys.modules.update(dict.fromkeys({blocked}))
from veilmq.cli import main
codes = {{main(each) for each in {commands}}}
sys.exit(codes.pop() if len(codes) == 1 else str(codes))
"""


def is_served(sqs: Any) -> bool:
    try:
        sqs.list_queues()
    except SqsError:
        return False
    return True


@contextmanager
def serving(
    *arguments: str, cwd: Path, start: Callable[..., Process] = Forked, **variables: str
) -> Iterator[tuple[Process, str]]:
    streams = PIPES | {"stderr": subprocess.DEVNULL}
    with start([*COMMAND, "serve", *arguments], cwd=cwd, env=environment(**variables), **streams) as process:
        try:
            assert process.stdout is not None
            match = re.search(r"http://\S+", process.stdout.readline())
            assert match, "the first line has no endpoint"
            yield process, match[0]
        finally:
            process.kill()


def plain_install(*commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run commands in a process without the modules of the extra `server`."""
    code = PLAIN.format(blocked=SERVER_EXTRA, commands=commands)
    return subprocess.run([sys.executable, "-c", code], env=environment(), timeout=60, check=False, **PIPES)


def test_messages_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    """The first server is a new Python process and stops at SIGTERM; its data folder is the default one."""
    with serving("--port", "0", cwd=tmp_path, start=subprocess.Popen, VEILMQ_ADMIN_PORT="0") as (process, endpoint):
        assert command("queue", "create", "orders", VEILMQ_ENDPOINT=endpoint).returncode == 0
        assert command("send", "orders", "hello", VEILMQ_ENDPOINT=endpoint).returncode == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert (tmp_path / "veilmq-data").is_dir()
    with (
        serving("--port", "0", "--data", "veilmq-data", cwd=tmp_path, VEILMQ_ADMIN_PORT="0") as (process, endpoint),
        HttpQueueClient(endpoint) as client,
    ):
        assert [message.body for message in client.receive("orders")] == ["hello"]


def test_a_server_in_memory_writes_no_files(tmp_path: Path) -> None:
    (tmp_path / "named.toml").write_text("memory = true\nport = 0\nadmin_port = 0\n", encoding="utf-8")
    with serving("--config", "named.toml", cwd=tmp_path) as (_, endpoint), HttpQueueClient(endpoint) as client:
        client.create_queue("orders")
        assert client.list_queues() == ["orders"]
    assert [file.name for file in tmp_path.iterdir()] == ["named.toml"]


def test_serve_prints_its_addresses_as_json(tmp_path: Path) -> None:
    words = [*COMMAND, "serve", "--memory", "--port", "0", "--admin-port", "0", "--json"]
    with Forked(words, cwd=tmp_path, env=environment(), **PIPES | {"stderr": None}) as process:
        assert process.stdout is not None
        bound = json.loads(process.stdout.readline())
        assert (bound["signed"], bound["kept"].split(",")[0]) == (False, "in memory only")
        with HttpQueueClient(bound["endpoint"]) as client:
            assert client.list_queues() == []
        assert urllib.request.urlopen(f"{bound['admin_endpoint']}/metrics").status == 200
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == ""


def test_a_folder_in_use_is_an_error(tmp_path: Path) -> None:
    with serving("--port", "0", "--admin-port", "0", "--data", str(tmp_path), cwd=tmp_path):
        second = command("serve", "--port", "0", "--admin-port", "0", "--data", str(tmp_path))
    assert (second.returncode, second.stdout) == (1, "")
    assert str(tmp_path) in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("--credentials absent.toml", "The credentials file absent.toml cannot be read: {}."),
        ("--tls-certificate a.pem --tls-key b.pem", "The TLS certificate a.pem cannot be read: {}."),
        ("--memory --audit-log absent/a", "audit_log = 'absent/a': cannot be written: {}; name another file"),
        (f"--data /{'x' * 300}", f"The data folder /{'x' * 300} cannot be made: File name too long."),
    ],
    ids=["credentials", "tls", "audit-log", "data"],
)
def test_a_path_that_cannot_be_used_is_an_error(options: str, error: str, veilmq: Veilmq) -> None:
    result = veilmq("serve", "--port", "0", "--admin-port", "0", *options.split())
    result.fails(1, f"veilmq: {error.format('No such file or directory')}\n")
    assert list(Path().iterdir()) == []


def test_sighup_reloads_the_credentials(tmp_path: Path) -> None:
    """One that arrives during the start does not end the server."""

    def start(command: list[str], **more: Any) -> Process:
        process = Forked(command, **more)
        with config.open("w") as file:  # once the server reads it
            process.send_signal(signal.SIGHUP)
            file.write("memory = true\n")
        return process

    keys, config = written(tmp_path / "keys.toml"), tmp_path / "config"
    os.mkfifo(config)
    more = ["--credentials", str(keys), "--region", REGION, "--config", str(config)]
    with serving("--port", "0", "--admin-port", "0", *more, cwd=tmp_path, start=start) as (process, endpoint):
        assert process.stdout is not None
        assert "Requests must be signed" in [process.stdout.readline() for _ in range(3)][-1]
        secret = SECRETS["AKIDFRIEND"]
        known, new = client(endpoint, "AKIDFRIEND"), client(endpoint, "AKIDNEW", aws_secret_access_key=secret)
        known.list_queues()
        written(keys, TEXT.replace("AKIDFRIEND", "AKIDNEW"))
        process.send_signal(signal.SIGHUP)
        assert any(is_served(new) for _ in range(10_000))
        with pytest.raises(SqsError, match="InvalidClientTokenId"):
            known.list_queues()


def test_files_may_begin_with_a_byte_order_mark(tmp_path: Path, veilmq: Veilmq) -> None:
    keys, mark = written(tmp_path / "keys.toml"), "\ufeff"
    written(keys, mark + TEXT)
    content = f'{mark}memory = true\naccount = "{OWNER}"\ncredentials = "{keys}"\n[queues.orders]\n'
    config = written(tmp_path / "veilmq.toml", content)
    with serving("--port", "0", "--admin-port", "0", cwd=config.parent) as (_, endpoint):
        assert len(client(endpoint, region_name="us-east-1").list_queues()["QueueUrls"]) == 1
    rules = written(tmp_path / "rules.toml", f"{mark}default = 'orders'\n")
    options = "--from jobs --until-empty --endpoint http://127.0.0.1:1"
    veilmq("forward", "--rules", str(rules), *options.split()).fails(1, "http://127.0.0.1:1")


def test_server_commands_without_the_server_extra_name_it() -> None:
    result = plain_install(["serve", "--memory"], ["doctor", "--data", "."])
    assert (result.returncode, result.stdout) == (1, "")
    for name, line in zip(("serve", "doctor"), result.stderr.splitlines(), strict=True):
        assert line.startswith(f"veilmq: veilmq {name} needs the module ")
        assert line.endswith("pip install 'veilmq[server]'")


def test_client_commands_need_no_extra(tmp_path: Path) -> None:
    with serving("--port", "0", "--admin-port", "0", "--memory", cwd=tmp_path) as (_, endpoint):
        commands = (["queue", "create", "orders"], ["send", "orders", "hello"], ["receive", "orders"])
        result = plain_install(*([*each, "--endpoint", endpoint] for each in commands))
    assert result.returncode == 0
    assert "hello" in result.stdout


# `veilmq worker`.


WORKER = "tests.consumer.workers:stuck"
SHOP = """
from veilmq.consumer import Consumer

app = Consumer("orders")


@app.handler
async def ship(body: str) -> None:
    raise KeyError("no such article")
"""
STOP_S_MAX = 10.0
"""An idle worker stops within a second (longer on a busy machine); a poll takes 20 s."""


def start(
    server: RunningServer,
    place: str = WORKER,
    *options: str,
    folder: Path = ROOT,
    begin: Callable[..., Process] = Forked,
    **variables: str,
) -> Process:
    variables = environment(**variables or {"VEILMQ_ENDPOINT": server.endpoint})
    return begin([*COMMAND, "worker", place, *options], cwd=folder, env=variables, **PIPES)


def signalled(worker: Process, server: RunningServer, *numbers: signal.Signals) -> tuple[int, str]:
    """Send signals to a worker that has begun a message; return its exit code and log."""
    with worker:
        assert worker.stdout is not None
        assert worker.stderr is not None
        assert '"begun"' in worker.stdout.readline()
        for number in numbers:
            worker.send_signal(number)
        passed_s = 0
        while worker.poll() is None:
            if server.parked and passed_s < 25:  # a poll lasts 20 s; a lease of 30 s must not end in a busy worker
                server.advance(1_000)
                passed_s += 1
        return worker.returncode, worker.stderr.read()


Memory = tuple[RunningServer, HttpQueueClient]


@pytest.fixture
def memory() -> Iterator[Memory]:
    """A server whose clock the test moves, and a client of it."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        yield server, client


def remaining(memory: Memory, body: str, *numbers: signal.Signals, **options: Any) -> tuple[int, int]:
    """Signal a worker that has begun a message; return how many messages are then visible and in flight."""
    server, client = memory
    client.create_queue("work")
    client.send("work", body)
    code, log = signalled(start(server, **options), server, *numbers)
    assert code == 0, log
    status = client.show("work")
    return status.visible, status.in_flight


def test_sigterm_stops_a_worker_after_its_messages(memory: Memory) -> None:
    assert remaining(memory, "m2", signal.SIGTERM) == (0, 0)


def test_a_second_signal_does_not_wait_for_handlers(memory: Memory) -> None:
    assert remaining(memory, "m1", signal.SIGTERM, signal.SIGINT) == (1, 0)


def test_processes_of_handlers_import_the_module_of_the_worker(memory: Memory) -> None:
    """This worker is not forked: its processes start as it did."""
    place = "tests.consumer.workers:apart"
    assert remaining(memory, "m2", signal.SIGTERM, place=place, begin=subprocess.Popen) == (0, 0)


def test_a_worker_uses_the_endpoint_of_the_profile(memory: Memory, tmp_path: Path) -> None:
    program = """from veilmq.consumer import Consumer\n\napp = Consumer("work")\n\n@app.handler\n
def work(body: str) -> None:\n    print('"begun"', body, flush=True)\n"""
    (tmp_path / "profiled_worker.py").write_text(program, encoding="utf-8")
    config = tmp_path / "config"
    config.write_text(f"[default]\nendpoint_url = {memory[0].endpoint}\n", encoding="utf-8")
    place = {"place": "profiled_worker:app", "folder": tmp_path, "AWS_CONFIG_FILE": str(config)}
    assert remaining(memory, "m2", signal.SIGTERM, **place) == (0, 0)


def started_shop(server: RunningServer, folder: Path) -> Process:
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    worker = start(server, "shop:app", "--create", folder=folder)
    server.wait_until(lambda: server.parked)
    return worker


def test_the_log_of_a_worker_contains_tracebacks(memory: Memory, tmp_path: Path) -> None:
    server, client = memory
    with started_shop(server, tmp_path) as worker:
        client.send("orders", "a")
        assert worker.stderr is not None
        while "is retried" not in worker.stderr.readline():
            assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        log = worker.stderr.read()
    assert "Traceback (most recent call last):" in log
    assert 'raise KeyError("no such article")' in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_worker_stops_at_once(memory: Memory, tmp_path: Path, number: signal.Signals) -> None:
    """It does not wait for the end of its poll, which never ends at this server's clock."""
    with started_shop(memory[0], tmp_path) as worker:
        began_s = time.monotonic()
        worker.send_signal(number)
        assert worker.wait(timeout=60) == 0
        assert time.monotonic() - began_s < STOP_S_MAX
        assert memory[0].parked == 0


def test_an_outage_is_one_line_of_the_log_for_each_attempt(memory: Memory) -> None:
    with start(memory[0], VEILMQ_ENDPOINT="http://127.0.0.1:1") as worker:
        assert worker.stderr is not None
        assert "receiving from work failed, trying again" in worker.stderr.readline()
        worker.send_signal(signal.SIGTERM)


def test_a_worker_of_a_missing_queue_ends(memory: Memory) -> None:
    with start(memory[0]) as worker:
        _, log = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "the queue work cannot be consumed, stopping: The specified queue does not exist" in log


EMPTY_SHOP = "from veilmq.consumer import Consumer\napp = Consumer('orders')\n"
HANDLER = "class Database: ...\n@app.handler\ndef ship(body: str, database: Database) -> None: ...\n"


@pytest.mark.parametrize(
    ("place", "text", "error"),
    [
        ("orders", "", "write module:name"),
        (":app", "", "write module:name"),
        ("no.such.module:app", "", "There is no module"),
        ("tests.consumer.workers:json", "", "is no veilmq.consumer.Consumer"),
        ("tests.cli.test_processes:ABSENT", "", "is no veilmq"),
        ("empty_shop:app", EMPTY_SHOP, "declare one with @app.handler"),
        ("poor_shop:app", EMPTY_SHOP + HANDLER, "handler ship takes Database, which no"),
    ],
    ids=["no-name", "no-module", "missing", "another", "absent", "no-handler", "no-dependency"],
)
def test_a_worker_without_a_valid_consumer_is_a_usage_error(
    veilmq: Veilmq, place: str, text: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker checks its consumer before it connects to a server."""
    (tmp_path / f"{place.partition(':')[0]}.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("VEILMQ_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = veilmq("worker", place)
    assert (result.code, error in re.sub(r"[│\s]+", " ", result.err)) == (2, True)


@pytest.mark.parametrize("line", ["open('absent.ini')", "import httptools.absent"])
def test_an_error_of_the_module_of_a_worker_has_its_traceback(
    line: str, veilmq: Veilmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is neither about a file of veilmq nor about an extra."""
    (tmp_path / "lost_shop.py").write_text(line, encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ImportError, match="lost_shop cannot be imported"):
        veilmq("worker", "lost_shop:app")


# `veilmq forward` against a real server.


RULES = """
default = "rest"

[[rules]]
queue = "video"
attributes.kind = "video"

[queues.video]
visibility_timeout_s = 600
"""
TABLE = {
    "version": 1,
    "attribute": "kind",
    "classes": [
        {"name": "short", "visibility_timeout_s": 20, "queue": "rest"},
        {"name": "long", "visibility_timeout_s": 900, "queue": "video"},
    ],
    "keys": {"video": 1},
    "default": 0,
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server with the system's clock: `--until-empty` ends when a poll times out."""
    with RunningServer(clock=SystemClock()) as running:
        monkeypatch.setenv("VEILMQ_ENDPOINT", running.endpoint)
        yield running


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "routes.toml"
    path.write_text(RULES)
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "routing.json"
    path.write_text(json.dumps(TABLE))
    return str(path)


def fill(client: HttpQueueClient) -> None:
    client.create_queue("intake")
    for body, kind in (("a", "video"), ("b", "text"), ("c", "video")):
        client.send("intake", body, attributes={"kind": Attribute("String", kind)})


def bodies(client: HttpQueueClient, queue: str) -> list[str]:
    return sorted(each.body for each in client.receive(queue, count=10))


@pytest.mark.parametrize(
    ("options", "how", "timeouts"),
    [
        ("--rules routes.toml", "each message in one transaction", [600, 30]),
        ("--rules routes.toml --plain", "by sending and deleting", [600, 30]),
        ("--table routing.json", "each message in one transaction", [900, 20]),
    ],
    ids=["rules", "plain", "table"],
)
@pytest.mark.usefixtures("rules", "table")
def test_forward_creates_the_queues(
    client: HttpQueueClient, veilmq: Veilmq, options: str, how: str, timeouts: list[int]
) -> None:
    fill(client)
    result = veilmq("forward", "--from", "intake", "--create", "--until-empty", *options.split())
    assert (result.code, result.out) == (0, "intake: 3 messages forwarded (rest 1, video 2)\n")
    assert result.err == f"rest: created\nvideo: created\nintake: forwarding to rest, video, {how}\n"
    assert (bodies(client, "video"), bodies(client, "rest")) == (["a", "c"], ["b"])
    assert [client.show(queue).settings.visibility_timeout_s for queue in ("video", "rest")] == timeouts


def test_forward_requires_its_queues_unless_it_creates_them(
    client: HttpQueueClient, veilmq: Veilmq, rules: str
) -> None:
    forward = ("forward", "--from", "intake", "--rules", rules, "--until-empty")
    veilmq(*forward, "--create").fails(1, "QueueDoesNotExist")
    fill(client)
    client.create_queue("rest")
    veilmq(*forward).fails(2, "veilmq: There is no queue video; create it first, or use --create.\n")
    assert client.show("intake").visible == 3


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('default = "rest"\n[[rules]]\nqueue = "video"', "Rule 1 (line 2)"),
        ('default = "intake"', "The intake intake is one of the queues to forward to"),
        ('default = "rest.fifo"', "intake and rest.fifo must both be FIFO queues, or both not."),
        ("\xff", "UTF-8"),
    ],
    ids=["rule", "itself", "type", "encoding"],
)
def test_invalid_rules_are_a_usage_error(veilmq: Veilmq, rules: str, text: str, error: str) -> None:
    Path(rules).write_bytes(text.encode("latin-1"))
    result = veilmq("forward", "--from", "intake", "--rules", rules, "--endpoint", "http://127.0.0.1:1")
    assert result.code == 2
    assert error.lower() in result.err.lower().replace("utf-8' codec", "utf-8")


def test_forward_takes_either_rules_or_a_table(veilmq: Veilmq, rules: str, table: str) -> None:
    for options, words in (
        ((), "--rules FILE or --table FILE"),
        (("--rules", rules, "--table", table), ""),
        (("--rules", "none"), "none"),
        (("--table", rules), "A routing table is JSON"),
    ):
        veilmq("forward", "--from", "intake", *options).fails(2, words)


def test_messages_that_cannot_be_forwarded_stay_in_the_queue(
    client: HttpQueueClient, veilmq: Veilmq, rules: str
) -> None:
    fill(client)
    client.create_queue("video", {"message_bytes_max": 1_024})
    client.create_queue("rest")
    client.send("intake", "x" * 2_000, attributes={"kind": Attribute("String", "video")})
    result = veilmq("forward", "--from", "intake", "--rules", rules, "--until-empty")
    failed = "1 attempts failed, and the messages stayed (MessageTooLong 1)"
    assert (result.code, result.out) == (0, f"intake: 3 messages forwarded (rest 1, video 2)\nintake: {failed}\n")
    assert client.show("intake").in_flight == 1


def test_forward_sends_and_deletes_at_a_server_without_forwards(
    client: HttpQueueClient, veilmq: Veilmq, rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Forwards, entries: object) -> None:
        raise ClientError("UnexpectedReply", "The reply is not that of a queue server: '<html>'.", 404)

    monkeypatch.setattr(Forwards, "forward", refuse)
    fill(client)
    result = veilmq("forward", "--from", "intake", "--rules", rules, "--create", "--until-empty")
    assert "by sending and deleting" in result.err
    assert result.out == "intake: 3 messages forwarded (rest 1, video 2)\n"


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT], ids=lambda sign: sign.name)
def test_forward_runs_until_a_signal_stops_it(
    server: RunningServer, client: HttpQueueClient, rules: str, sign: signal.Signals
) -> None:
    fill(client)
    command = [*COMMAND, "forward", "--from", "intake", "--rules", rules, "--create", "--wait", "1"]
    process = Forked(command, env=environment(VEILMQ_ENDPOINT=server.endpoint), **PIPES)
    assert process.stderr is not None
    while "forwarding to" not in (line := process.stderr.readline()):
        assert line, process.communicate()
    (first,) = client.receive("rest", count=1, wait_s=20)
    client.send("intake", "late")
    (late,) = client.receive("rest", count=1, wait_s=20)
    os.kill(process.pid, sign)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, first.body, late.body) == (0, "b", "late"), err
    assert out == "intake: 4 messages forwarded (rest 2, video 2)\n"


def test_forward_exports_metrics_and_logs_json(server: RunningServer, client: HttpQueueClient, rules: str) -> None:
    client.create_queue("intake")
    client.send("intake", "x", attributes={"kind": Attribute(type="String", text="video")})
    command = [*COMMAND, "forward", "--from", "intake", "--rules", rules, "--create", "--wait", "1"]
    command += ["--metrics-port", "0", "--log", "info", "--log-format", "json"]
    with Forked(command, env=environment(VEILMQ_ENDPOINT=server.endpoint), **PIPES) as forwarder:
        assert forwarder.stderr is not None
        line = next(line for line in forwarder.stderr if "metrics at port" in line)
        url = f"http://127.0.0.1:{json.loads(line)['message'].split()[-1]}/metrics"
        expected = 'veilmq_forward_forwarded_total{intake="intake",queue="video",rule="1"} 1.0'
        server.wait_until(lambda: expected in urllib.request.urlopen(url).read().decode())
        forwarder.send_signal(signal.SIGTERM)
        forwarder.communicate()  # drain the pipe: the last lines would fail if it were closed
    assert forwarder.returncode == 0
