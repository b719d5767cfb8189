"""`veilmq send`, `receive` and `peek` against a real server."""

import base64
import io
import json
import os
import signal
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest

from tests.cli.conftest import COMMAND, Veilmq, environment
from tests.client.scripted_server import ScriptedServer, reply
from tests.proofs.forking import Forked, run
from tests.proofs.served import ServedFolder
from veilmq.client import HttpQueueClient
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer


@pytest.fixture(autouse=True)
def queue(client: HttpQueueClient) -> None:
    client.create_queue("orders")


def type_in(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


@pytest.mark.parametrize("body", ["hello", "--hello", "-1", "wörld €", '{"a": [1]}', "a\nb"])
def test_the_body_is_sent_as_it_is(body: str, client: HttpQueueClient, veilmq: Veilmq) -> None:
    answer = veilmq("send", "orders", body)
    assert (answer.code, answer.err) == (0, "")
    (message,) = client.receive("orders")
    assert message.body == body
    assert answer.out == f"{message.id}\n"


@pytest.mark.parametrize("arguments", [[], ["-"]], ids=["nothing", "dash"])
def test_the_body_may_come_from_standard_input(
    arguments: list[str], client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last line's end belongs to the shell, the others to the message."""
    type_in("zwei\nZeilen für\n".encode(), monkeypatch)
    assert veilmq("send", "orders", *arguments).code == 0
    assert client.receive("orders")[0].body == "zwei\nZeilen für"


def test_standard_input_must_be_text(client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(b"abc\xff", monkeypatch)
    answer = veilmq("send", "orders")
    assert (answer.code, answer.err) == (2, "veilmq: A message is text: standard input is not UTF-8 at byte 3.\n")
    assert client.show("orders").visible == 0


def test_json_has_the_id(client: HttpQueueClient, veilmq: Veilmq) -> None:
    sent = json.loads(veilmq("send", "orders", "hello", "--json").out)
    assert sent == {"id": client.receive("orders")[0].id, "sequence": None}


def test_a_delay_hides_the_message(client: HttpQueueClient, veilmq: Veilmq) -> None:
    veilmq("send", "orders", "later", "--delay", "900")
    status = client.show("orders")
    assert (status.visible, status.delayed) == (0, 1)


def test_attributes_are_text(client: HttpQueueClient, veilmq: Veilmq) -> None:
    veilmq("send", "orders", "hello", "--attribute", "colour=red", "--attribute", "sum=1+1=2")
    assert client.receive("orders")[0].attributes == {
        "colour": Attribute(type="String", text="red"),
        "sum": Attribute(type="String", text="1+1=2"),
    }


def test_a_refusal_of_the_server_is_shown(veilmq: Veilmq) -> None:
    answer = veilmq("send", "orders", "\x01")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.endswith("(InvalidMessageContents)\n")


# `veilmq receive` against a real server.


def test_a_message_is_printed_aligned(client: HttpQueueClient, veilmq: Veilmq) -> None:
    attributes = {"colour": Attribute(type="String", text="red")}
    sent = client.send("orders", "two\nlines", attributes=attributes)
    lines = veilmq("receive", "orders").out.splitlines()
    assert lines.pop(1).startswith("receipt           ")
    assert lines == [
        f"id                {sent.id}",
        "sent              2023-11-14 22:13:20 UTC",
        "first received    2023-11-14 22:13:20 UTC",
        "receive count     1",
        "attribute colour  red (String)",
        "body              two",
        "                  lines",
    ]


def test_messages_are_printed_with_a_line_between(client: HttpQueueClient, veilmq: Veilmq) -> None:
    for body in ("a", "b", "c"):
        client.send("orders", body)
    blocks = veilmq("receive", "orders", "--count", "2").out.split("\n\n")
    assert [block.split()[-1] for block in blocks] == ["a", "b"]


def test_json_is_an_array(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    sent = client.send("orders", "hello", attributes={"raw": Attribute(type="Binary", data=b"\x00\xff")})
    (message,) = json.loads(veilmq("receive", "orders", "--json").out)
    assert message.pop("receipt")
    assert message == {
        "id": sent.id,
        "body": "hello",
        "attributes": {"raw": {"type": "Binary", "value": base64.b64encode(b"\x00\xff").decode()}},
        "sent_at_ms": server.clock.now_ms(),
        "first_received_at_ms": server.clock.now_ms(),
        "receive_count": 1,
        "group": None,
        "dedup_id": None,
        "sequence": None,
        "source": None,
    }


def test_a_message_of_a_fifo_queue_tells_its_place(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("a.fifo", {"fifo": True})
    sent = json.loads(veilmq("send", "a.fifo", "hello", "--group", "g", "--dedup-id", "d", "--json").out)
    lines = veilmq("receive", "a.fifo").out.splitlines()
    assert "group           g" in lines
    assert "dedup id        d" in lines
    assert f"sequence        {sent['sequence']}" in lines
    empty = veilmq("receive", "orders", "--json")
    assert (empty.code, empty.out, empty.err) == (0, "[]\n", "")


def test_no_message_is_no_error(veilmq: Veilmq) -> None:
    answer = veilmq("receive", "orders")
    assert (answer.code, answer.out, answer.err) == (0, "", "No message.\n")


def test_the_timeout_hides_the_message(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.send("orders", "hello")
    veilmq("receive", "orders", "--timeout", "5")
    server.advance(4_999)
    assert client.receive("orders") == []
    server.advance(1)
    assert client.receive("orders")[0].receive_count == 2


def test_delete_deletes_what_was_printed(client: HttpQueueClient, veilmq: Veilmq) -> None:
    for body in ("a", "b"):
        client.send("orders", body)
    assert "body            a\n" in veilmq("receive", "orders", "--delete").out
    status = client.show("orders")
    assert (status.visible, status.in_flight) == (1, 0)


def test_wait_is_passed_on(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    """The queue waits 20 s by itself; with --wait 0 the answer comes although the clock stands still."""
    client.set("orders", {"receive_wait_s": 20})
    assert veilmq("receive", "orders", "--wait", "0").err == "No message.\n"
    assert server.parked == 0


def test_a_message_that_nobody_read_is_not_deleted(server: RunningServer, client: HttpQueueClient) -> None:
    """The reader of the output went away before it came: the message comes back after its timeout."""
    client.send("orders", "hello")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nowhere:
        answer = run(
            [*COMMAND, "receive", "orders", "--delete", "--endpoint", server.endpoint],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=nowhere,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (answer.returncode, answer.stderr) == (141, b"")
    server.advance(30_000)
    assert client.receive("orders")[0].body == "hello"


@pytest.mark.parametrize(
    ("options", "code", "reason"), [([], "InternalFailure", "Try again."), (["--follow"], "AccessDenied", "No.")]
)
def test_a_delete_that_fails_is_an_error(options: list[str], code: str, reason: str, veilmq: Veilmq) -> None:
    """One that is refused ends --follow too: it would be refused again, and the messages would come again and again."""
    system = {"SentTimestamp": "1", "ApproximateFirstReceiveTimestamp": "1", "ApproximateReceiveCount": "1"}
    message = {"MessageId": "a", "ReceiptHandle": "r", "MD5OfBody": "m", "Body": "hello", "Attributes": system}
    failure = {"Id": "0", "SenderFault": code == "AccessDenied", "Code": code, "Message": reason}
    answers = [{"QueueUrl": "http://h/1/orders"}, {"Messages": [message]}, {"Failed": [failure]}]
    with ScriptedServer(*[reply(200, json.dumps(answer).encode()) for answer in answers]) as scripted:
        answer = veilmq("receive", "orders", "--delete", *options, "--endpoint", scripted.endpoint)
    assert (answer.code, answer.err) == (1, f"veilmq: 1 of 1 messages were not deleted: {reason}\n")
    assert "body            hello\n" in answer.out


# Messages in bulk: each line of a file, or of standard input.


def bodies(client: HttpQueueClient, queue: str = "orders") -> list[str]:
    return [message.body for _ in range(10) for message in client.receive(queue, count=10, wait_s=0)]


def test_each_line_of_a_file_is_a_message(client: HttpQueueClient, veilmq: Veilmq, tmp_path: Path) -> None:
    """Ends of lines of both kinds are none of the message's; empty lines are none."""
    lines = [f"m{number} für" for number in range(23)]
    (tmp_path / "orders.txt").write_bytes("\r\n".join([*lines[:5], "", *lines[5:]]).encode())
    answer = veilmq("send", "orders", "--file", "orders.txt", "--attribute", "colour=red", "--delay", "0")
    assert (answer.code, answer.out, answer.err) == (0, "Sent 23 messages.\n", "")
    (first,) = client.receive("orders")
    assert (first.body, first.attributes) == (lines[0], {"colour": Attribute(type="String", text="red")})
    assert bodies(client) == lines[1:]


def test_each_line_of_standard_input_is_a_message(
    client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_queue("a.fifo", {"fifo": True, "content_deduplication": True})
    type_in(b"one\ntwo\none\n", monkeypatch)
    answer = veilmq("send", "a.fifo", "--stdin-lines", "--group", "g", "--json")
    assert (answer.code, json.loads(answer.out)) == (0, {"sent": 3, "failed": []})
    assert bodies(client, "a.fifo") == ["one", "two"]


def test_lines_that_are_not_sent_are_named(client: HttpQueueClient, veilmq: Veilmq, tmp_path: Path) -> None:
    """The others are: also those of the same batch, whatever the failure was."""
    client.set("orders", {"message_bytes_max": 1_024})
    path = tmp_path / "orders.txt"
    path.write_bytes(b"\n".join([b"a", b"\xff", b"b", b"x" * 1_025, b"y" * 1_048_577, b"c\x01", b"d"]))
    answer = veilmq("send", "orders", "--file", str(path))
    assert (answer.code, answer.out) == (1, "Sent 3 messages.\n")
    *failures, last = answer.err.splitlines()
    assert [line.partition(":")[0] for line in failures] == ["line 2", "line 4", "line 5", "line 6"]
    assert failures[0] == "line 2: It is not UTF-8 at byte 0. (InvalidMessageContents)"
    assert last == "veilmq: 4 of 7 lines were not sent."
    assert bodies(client) == ["a", "b", "d"]
    told = json.loads(veilmq("send", "orders", "--file", str(path), "--json").out)
    assert (told["sent"], [each["line"] for each in told["failed"]]) == (3, [2, 4, 5, 6])


def test_large_lines_share_no_request_that_would_be_too_large(
    client: HttpQueueClient, veilmq: Veilmq, tmp_path: Path
) -> None:
    (tmp_path / "large.txt").write_text("\n".join(letter * 400_000 for letter in "abcde"))
    assert veilmq("send", "orders", "--file", "large.txt").out == "Sent 5 messages.\n"
    assert sorted(body[0] for body in bodies(client)) == list("abcde")


def test_sending_stops_where_all_would_fail(veilmq: Veilmq, tmp_path: Path) -> None:
    """What is sent by then is said."""
    (tmp_path / "lines.txt").write_text("\n".join(map(str, range(25))))
    answer = veilmq("send", "nowhere", "--file", "lines.txt")
    assert (answer.code, answer.out) == (1, "Sent 0 messages.\n")
    assert answer.err.startswith("veilmq: Sending stopped at line 1: ")
    done = [{"Id": str(number), "MessageId": "m", "MD5OfMessageBody": "m"} for number in range(10)]
    replies = [reply(200, b'{"QueueUrl": "http://h/1/orders"}'), reply(200, json.dumps({"Successful": done}).encode())]
    with ScriptedServer(*replies, reply(403, b'{"__type": "AccessDenied", "message": "No."}')) as scripted:
        answer = veilmq("send", "orders", "--file", "lines.txt", "--endpoint", scripted.endpoint)
    assert (answer.code, answer.out) == (1, "Sent 10 messages.\n")
    assert answer.err == "veilmq: Sending stopped at line 11: No.\n"


def test_an_interrupted_bulk_says_where_to_start_again(server: RunningServer, client: HttpQueueClient) -> None:
    words = [*COMMAND, "send", "orders", "--stdin-lines", "--endpoint", server.endpoint]
    pipe = subprocess.PIPE
    with Forked(words, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        process.stdin.writelines(f"{number}\n" for number in range(11))  # the eleventh waits for more of its batch
        process.stdin.flush()
        server.wait_until(lambda: client.show("orders").visible == 10)
        process.stdin.write("11\n")
        process.stdin.flush()
        pipe_end, nothing = process.stdin.fileno(), bytes(4)
        server.wait_until(lambda: ioctl(pipe_end, FIONREAD, nothing) == nothing)  # it reads on once it has the reply
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == "Sent 10 messages.\n"
        assert process.stderr.read() == "veilmq: Sending stopped at line 11.\n"
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["hello", "--stdin-lines"], "Give one of a message, --file and --stdin-lines."),
        (["--file", "a", "--stdin-lines"], "Give one of a message, --file and --stdin-lines."),
        (["--file", "absent"], "--file absent: No such file or directory."),
        (["--stdin-lines", "--dedup-id", "x"], "all lines one message"),
    ],
)
def test_bulk_that_contradicts_itself_is_a_usage_error(options: list[str], words: str, veilmq: Veilmq) -> None:
    veilmq("send", "orders", *options).fails(2, words)


def test_a_terminal_shows_the_progress(client: HttpQueueClient, server: RunningServer, tmp_path: Path) -> None:
    """On standard error, and leaves nothing of it there; the result is on standard output."""
    (tmp_path / "lines.txt").write_text("\n".join(map(str, range(35))))
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "wb") as terminal:
        words = [*COMMAND, "send", "orders", "--file", "lines.txt", "--endpoint", server.endpoint]
        variables = environment(TERM="xterm")
        done = run(words, env=variables, cwd=tmp_path, stdout=subprocess.PIPE, stderr=terminal, timeout=60)
    shown = os.read(ours, 65_536)
    os.close(ours)
    assert (done.returncode, done.stdout) == (0, b"Sent 35 messages.\n")
    assert b"messages" in shown
    assert len(bodies(client)) == 35


# `veilmq receive --follow`.


def following(server: RunningServer, *options: str) -> Forked:
    words = [*COMMAND, "receive", "orders", "--follow", *options, "--endpoint", server.endpoint]
    return Forked(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_follow_prints_messages_as_they_come(server: RunningServer, client: HttpQueueClient) -> None:
    with following(server, "--json", "--delete") as process:
        assert process.stdout is not None
        for body in ("a", "b"):
            client.send("orders", body)
            assert json.loads(process.stdout.readline())["body"] == body
        server.wait_until(lambda: server.parked)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    status = client.show("orders")
    assert (status.visible, status.in_flight) == (0, 0)


def test_follow_outlives_the_server(tmp_path: Path) -> None:
    """It says once that it tries again, and goes on when the server is back; other errors end it."""
    with ServedFolder(tmp_path / "data") as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        words = [*COMMAND, "receive", "orders", "--follow", "--json", "--delete", "--endpoint", server.endpoint]
        with Forked(words, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            client.send("orders", "before")
            assert json.loads(process.stdout.readline())["body"] == "before"
            server.stop()
            assert process.stderr.readline().startswith(f"veilmq: No answer from {server.endpoint}: ")
            server.start()
            client.send("orders", "after")
            assert json.loads(process.stdout.readline())["body"] == "after"
            client.delete_queue("orders")
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out, "(QueueDoesNotExist)" in err, err.count("\n")) == (1, "", True, 1)


def test_follow_needs_a_wait(veilmq: Veilmq) -> None:
    veilmq("receive", "orders", "--follow", "--wait", "0").fails(2, "--follow needs a --wait of at least 1.")


# `veilmq peek`.


def test_a_peek_receives_nothing(client: HttpQueueClient, veilmq: Veilmq) -> None:
    sent = client.send("orders", "two\nlines", attributes={"colour": Attribute(type="String", text="red")})
    assert veilmq("peek", "orders").out.splitlines() == [
        f"id                {sent.id}",
        "sent              2023-11-14 22:13:20 UTC",
        "receive count     0",
        "attribute colour  red (String)",
        "body              two",
        "                  lines",
    ]
    (shown,) = json.loads(veilmq("peek", "orders", "--json").out)
    assert (shown["id"], shown["body"], shown["receive_count"]) == (sent.id, "two\nlines", 0)
    status = client.show("orders")
    assert (status.visible, status.in_flight) == (1, 0)
    assert client.receive("orders")[0].receive_count == 1


def test_a_peek_shows_messages_of_a_state(client: HttpQueueClient, veilmq: Veilmq) -> None:
    for body, delay_s in (("taken", 0), ("later", 900), ("there", 0), ("too", 0)):
        client.send("orders", body, delay_s=delay_s)
    (taken,) = client.receive("orders")
    for state, expected in (
        ("visible", ["there", "too"]),
        ("in_flight", ["taken"]),
        ("delayed", ["later"]),
        ("any", ["taken", "later", "there", "too"]),
    ):
        shown = json.loads(veilmq("peek", "orders", "--state", state, "--json").out)
        assert [each["body"] for each in shown] == expected, state
    assert "state           in_flight\n" in veilmq("peek", "orders", "--id", taken.id).out
    blocks = veilmq("peek", "orders", "--count", "1").out.split("\n\n")
    assert [block.split()[-1] for block in blocks] == ["there"]


def test_a_peek_into_an_empty_queue_is_no_error(veilmq: Veilmq) -> None:
    answer = veilmq("peek", "orders")
    assert (answer.code, answer.out, answer.err) == (0, "", "No message.\n")
    assert veilmq("peek", "orders", "--json").out == "[]\n"
    veilmq("peek", "nowhere").fails(1, "QueueDoesNotExist")
