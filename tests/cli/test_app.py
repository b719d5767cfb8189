"""The application: its help, its exit codes, and its one line when something is wrong."""

import contextlib
import os
import signal
import socket
import subprocess

import pytest

from tests.cli.conftest import COMMAND, Veilmq, command, environment
from tests.cli.every_command import every_command
from tests.client.scripted_server import ScriptedServer, reply
from tests.proofs.forking import Forked, run
from veilmq import __version__
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

COMMANDS = [name for name, _ in every_command()]


def test_the_process_answers_help() -> None:
    """`python -m veilmq --help` lists every first word, and so does no argument at all."""
    answer = subprocess.run(
        [*COMMAND, "--help"], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert {name.split()[0] for name in COMMANDS} <= set(answer.stdout.split())
    assert command().stdout == answer.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_answers_help(name: str, veilmq: Veilmq) -> None:
    """Its usage and a sentence about it."""
    answer = veilmq(*name.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"Usage: veilmq {name}")


def test_the_version_is_that_of_the_package(veilmq: Veilmq) -> None:
    """One line."""
    assert veilmq("--version").out == f"veilmq {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["nope"], 'Unknown command "nope". Available commands: serve, queue', id="command"),
        pytest.param(["queue", "lst"], 'Unknown command "lst". Did you mean "list"?', id="near-command"),
        pytest.param(
            ["queue", "list", "--perfix", "a"], "Unknown option: --perfix. Did you mean --prefix?", id="option"
        ),
        pytest.param(["queue", "show"], "QUEUE", id="missing"),
        pytest.param(["queue", "show", "a", "b"], "Unused", id="too-many"),
        pytest.param(["queue", "create", "a", "--delay", "901"], "whole number from 0 to 900", id="range"),
        pytest.param(["queue", "create", "a", "--delay", "soon"], "--delay", id="no-number"),
        pytest.param(["queue", "list", "--endpoint", "here"], "must look like http://127.0.0.1:9324", id="endpoint"),
    ],
)
def test_a_wrong_command_is_a_usage_error(arguments: list[str], words: str, veilmq: Veilmq) -> None:
    """Exit code 2, nothing on standard output, one line that says what is wrong."""
    answer = veilmq(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert answer.err.startswith("veilmq: ")
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [["send", "q"], ["serve", "--data"]], ids=["text", "path"])
def test_bytes_that_are_no_text_are_a_usage_error(arguments: list[str], veilmq: Veilmq) -> None:
    """Exit code 2 and one line, in which they are escaped; nothing is sent."""
    answer = veilmq(*arguments, b"\xff".decode(errors="surrogateescape"))  # as Python gives them
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("veilmq: The argument '")
    assert "is not text in the encoding of this locale (" in answer.err
    assert answer.err.count("\n") == 1


def test_text_that_is_none_in_the_locale_is_a_usage_error() -> None:
    """Of a process that has the locale C."""
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words: list[str | bytes] = [*COMMAND, "queue", "create", "été".encode()]
    answer = subprocess.run(words, env=environment(**variables), capture_output=True, timeout=60, check=False)
    assert (answer.returncode, answer.stdout) == (2, b"")
    assert answer.stderr.startswith(b"veilmq: The argument '")
    assert b"is not text in the encoding of this locale (" in answer.stderr
    assert answer.stderr.count(b"\n") == 1


@pytest.mark.parametrize("arguments", [["serve", "--no-memory"], ["queue", "list", "--no-json"]])
def test_a_negated_switch_is_not_answered_with_the_switch(arguments: list[str], veilmq: Veilmq) -> None:
    """`--memory` would be the opposite of what was meant."""
    answer = veilmq(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"veilmq: Unknown option: {arguments[-1]}. A switch is off unless it is given.\n"


def test_no_server_says_how_to_start_one(veilmq: Veilmq) -> None:
    """Exit code 1, the endpoint, the reason and the remedy."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    answer = veilmq("queue", "list", "--endpoint", endpoint)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == (
        f"veilmq: No answer from {endpoint}: connection refused. "
        "Start a server with `veilmq serve`, or name another with --endpoint.\n"
    )


def test_something_else_than_a_queue_server_is_called_that(veilmq: Veilmq) -> None:
    """Another program may listen there."""
    with ScriptedServer(reply(404, b"<html>\nnot here")) as server:
        answer = veilmq("queue", "list", "--endpoint", server.endpoint)
    assert answer.code == 1
    assert "not that of a queue server" in answer.err
    assert answer.err.endswith("Name the endpoint of a queue server with --endpoint.\n")


def test_the_option_beats_the_variable(server: RunningServer, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint of the environment holds where no option is given."""
    assert veilmq("queue", "list").code == 0
    monkeypatch.setenv("VEILMQ_ENDPOINT", "http://127.0.0.1:1")
    assert veilmq("queue", "list", "--endpoint", server.endpoint).code == 0


def test_a_reader_that_goes_away_is_no_error(server: RunningServer, client: HttpQueueClient) -> None:
    """`veilmq queue list | head -1`: quiet, with the exit code of SIGPIPE."""
    client.create_queue("orders")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        answer = run(
            [*COMMAND, "queue", "list", "--endpoint", server.endpoint],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    finally:
        os.close(writing)
    assert (answer.returncode, answer.stderr) == (141, b"")


def test_an_interrupt_is_quiet(server: RunningServer, client: HttpQueueClient) -> None:
    """Ctrl-C while a receive waits: exit code 130 and not a word."""
    client.create_queue("orders")
    with Forked(
        [*COMMAND, "receive", "orders", "--wait", "20", "--endpoint", server.endpoint],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        for _ in range(1_200):
            if server.parked:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.05)
        assert server.parked == 1, "the receive did not come to wait"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")
