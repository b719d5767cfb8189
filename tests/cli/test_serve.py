"""`veilmq serve` as a process of its own, and what is said when it cannot start."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.cli.conftest import COMMAND, Veilmq, command, environment
from tests.proofs.forking import Forked
from tests.server.keys import REGION, SECRETS, TEXT, client, written
from veilmq.client import HttpQueueClient

Process = Forked | subprocess.Popen[str]
SERVER_EXTRA = ["apsw", "filelock", "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"]
PLAIN = """
import sys
sys.modules.update(dict.fromkeys({blocked}))
from veilmq.cli import main
codes = {{main(each) for each in {commands}}}
sys.exit(codes.pop() if len(codes) == 1 else str(codes))
"""


def is_served(sqs: Any) -> bool:
    """Return whether a client is let in."""
    try:
        sqs.list_queues()
    except ClientError:
        return False
    return True


@contextmanager
def serving(
    *arguments: str, cwd: Path, start: Callable[..., Process] = Forked, **variables: str
) -> Iterator[tuple[Process, str]]:
    """Run `veilmq serve`; yields the process and the endpoint that it printed."""
    with start(
        [*COMMAND, "serve", *arguments],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            match = re.search(r"http://\S+", process.stdout.readline())
            assert match, "the first line has no endpoint"
            yield process, match[0]
        finally:
            process.kill()


def plain_install(*commands: list[str]) -> subprocess.CompletedProcess[str]:
    """Run commands in a Python that has nothing of the extra `server`."""
    code = PLAIN.format(blocked=SERVER_EXTRA, commands=commands)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )


def test_messages_outlive_the_server(tmp_path: Path) -> None:
    """Settings from flag and environment, the default folder, SIGTERM, and the same message after it.

    The first server is a start of Python, as that of a person.
    """
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


def test_memory_keeps_nothing(tmp_path: Path) -> None:
    """No folder appears; the settings come from a file."""
    (tmp_path / "named.toml").write_text("memory = true\nport = 0\nadmin_port = 0\n", encoding="utf-8")
    with (
        serving("--config", "named.toml", cwd=tmp_path) as (_, endpoint),
        HttpQueueClient(endpoint) as client,
    ):
        client.create_queue("orders")
        assert client.list_queues() == ["orders"]
    assert [file.name for file in tmp_path.iterdir()] == ["named.toml"]


def test_a_folder_in_use_is_an_error(tmp_path: Path) -> None:
    """A second server on the same folder ends at once, and says why."""
    with serving("--port", "0", "--admin-port", "0", "--data", str(tmp_path), cwd=tmp_path):
        second = command("serve", "--port", "0", "--admin-port", "0", "--data", str(tmp_path))
    assert (second.returncode, second.stdout) == (1, "")
    assert str(tmp_path) in second.stderr
    assert "Traceback" not in second.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ["--port", "65536"], "port = '65536' (flag --port): must be a whole number from 0 to 65535", id="port"
        ),
        pytest.param(["--data", "a", "--memory"], "give one of store, data and memory", id="data-and-memory"),
        pytest.param(["--host", "0.0.0.0"], "--insecure", id="reach"),
        pytest.param(["--tls-key", "key.pem"], "tls_certificate (default): must be given with tls_key", id="tls"),
        pytest.param(["--config", "absent.toml"], "config = 'absent.toml': cannot be read", id="file"),
        pytest.param(["--prot", "1"], "Unknown option: --prot. Did you mean --port?", id="unknown"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(arguments: list[str], words: str, veilmq: Veilmq) -> None:
    """Exit code 2 and one line, before anything is opened."""
    answer = veilmq("serve", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert answer.err.count("\n") == 1
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--credentials", "absent.toml"],
            "The credentials file absent.toml cannot be read: No such file or directory.",
        ),
        (
            ["--tls-certificate", "a.pem", "--tls-key", "b.pem"],
            "The TLS certificate a.pem cannot be read: No such file or directory.",
        ),
    ],
    ids=["credentials", "tls"],
)
def test_files_that_cannot_be_used_stop_the_start(arguments: list[str], words: str, veilmq: Veilmq) -> None:
    """With one line, before anything is opened."""
    answer = veilmq("serve", "--port", "0", "--admin-port", "0", *arguments)
    assert (answer.code, answer.out, answer.err) == (1, "", f"veilmq: {words}\n")
    assert list(Path().iterdir()) == []


def test_the_hangup_signal_has_the_keys_read_again(tmp_path: Path) -> None:
    """And the first words say that requests must be signed."""
    keys = written(tmp_path / "keys.toml")
    more = ["--credentials", str(keys), "--region", REGION]
    with serving("--port", "0", "--admin-port", "0", "--memory", *more, cwd=tmp_path) as (process, endpoint):
        assert process.stdout is not None
        assert "Requests must be signed" in [process.stdout.readline() for _ in range(3)][-1]
        secret = SECRETS["AKIDFRIEND"]
        known, new = client(endpoint, "AKIDFRIEND"), client(endpoint, "AKIDNEW", aws_secret_access_key=secret)
        known.list_queues()
        written(keys, TEXT.replace("AKIDFRIEND", "AKIDNEW"))
        process.send_signal(signal.SIGHUP)
        assert any(is_served(new) for _ in range(10_000))
        with pytest.raises(ClientError, match="InvalidClientTokenId"):
            known.list_queues()


def test_a_plain_install_names_the_extra() -> None:
    """One line for each command, with the one that installs what is missing."""
    answer = plain_install(["serve", "--memory"], ["doctor", "--data", "."])
    assert (answer.returncode, answer.stdout) == (1, "")
    for name, line in zip(("serve", "doctor"), answer.stderr.splitlines(), strict=True):
        assert line.startswith(f"veilmq: veilmq {name} needs the module ")
        assert line.endswith("pip install 'veilmq[server]'")


def test_a_plain_install_has_the_other_commands(tmp_path: Path) -> None:
    """The client side needs nothing of the server's."""
    with serving("--port", "0", "--admin-port", "0", "--memory", cwd=tmp_path) as (_, endpoint):
        commands = (["queue", "create", "orders"], ["send", "orders", "hello"], ["receive", "orders"])
        answer = plain_install(*([*each, "--endpoint", endpoint] for each in commands))
    assert answer.returncode == 0
    assert "hello" in answer.stdout
