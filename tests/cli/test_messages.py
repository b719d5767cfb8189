"""`veilmq send`, `receive` and `peek` against a real server."""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD

import pytest
import urllib3

from tests.cli.conftest import COMMAND, PIPES, Veilmq, environment
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
def test_send_sends_the_body_unchanged(body: str, client: HttpQueueClient, veilmq: Veilmq) -> None:
    result = veilmq("send", "orders", body)
    assert (result.code, result.err) == (0, "")
    (message,) = client.receive("orders")
    assert message.body == body
    assert result.out == f"{message.id}\n"


@pytest.mark.parametrize("arguments", [[], ["-"]], ids=["nothing", "dash"])
def test_send_reads_the_body_from_standard_input(
    arguments: list[str], client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the last line end, which the shell adds, and keeps the others."""
    type_in("zwei\nZeilen für\n".encode(), monkeypatch)
    assert veilmq("send", "orders", *arguments).code == 0
    assert client.receive("orders")[0].body == "zwei\nZeilen für"


def test_standard_input_must_be_text(client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(b"abc\xff", monkeypatch)
    veilmq("send", "orders").fails(2, "veilmq: A message is text: standard input is not UTF-8 at byte 3.\n")
    assert client.show("orders").visible == 0


def test_send_takes_attributes_and_a_delay(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    attributes = ("--attribute", "colour=red", "--attribute", "sum=1+1=2")
    sent = json.loads(veilmq("send", "orders", "hello", *attributes, "--delay", "900", "--json").out)
    assert (client.show("orders").visible, client.show("orders").delayed) == (0, 1)
    server.advance(900_000)
    (message,) = client.receive("orders")
    assert sent == {"id": message.id, "sequence": None}
    texts = {"colour": "red", "sum": "1+1=2"}
    assert message.attributes == {name: Attribute(type="String", text=text) for name, text in texts.items()}


def test_send_prints_the_error_of_the_server(veilmq: Veilmq) -> None:
    veilmq("send", "orders", "\x01").fails(1, "(InvalidMessageContents)\n")


# `veilmq receive` against a real server.


def test_receive_prints_a_message_in_aligned_lines(client: HttpQueueClient, veilmq: Veilmq) -> None:
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


def test_receive_separates_messages_by_an_empty_line(client: HttpQueueClient, veilmq: Veilmq) -> None:
    for body in ("a", "b", "c"):
        client.send("orders", body)
    blocks = veilmq("receive", "orders", "--count", "2").out.split("\n\n")
    assert [block.split()[-1] for block in blocks] == ["a", "b"]


def test_receive_prints_a_json_array(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
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


def test_receive_prints_the_group_and_sequence_of_a_fifo_message(client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.create_queue("a.fifo", {"fifo": True})
    sent = json.loads(veilmq("send", "a.fifo", "hello", "--group", "g", "--dedup-id", "d", "--json").out)
    lines = veilmq("receive", "a.fifo").out.splitlines()
    assert "group           g" in lines
    assert "dedup id        d" in lines
    assert f"sequence        {sent['sequence']}" in lines


@pytest.mark.parametrize("verb", ["receive", "peek"])
def test_an_empty_queue_is_no_error(verb: str, veilmq: Veilmq) -> None:
    result = veilmq(verb, "orders")
    assert (result.code, result.out, result.err) == (0, "", "No message.\n")
    veilmq(verb, "orders", "--json").prints("[]\n")
    veilmq(verb, "nowhere").fails(1, "QueueDoesNotExist")


def test_receive_takes_a_visibility_timeout(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    client.send("orders", "hello")
    veilmq("receive", "orders", "--timeout", "5")
    server.advance(4_999)
    assert client.receive("orders") == []
    server.advance(1)
    assert client.receive("orders")[0].receive_count == 2


def test_receive_deletes_printed_messages(client: HttpQueueClient, veilmq: Veilmq) -> None:
    for body in ("a", "b"):
        client.send("orders", body)
    assert "body            a\n" in veilmq("receive", "orders", "--delete").out
    status = client.show("orders")
    assert (status.visible, status.in_flight) == (1, 0)


def test_the_wait_option_overrides_the_wait_time_of_the_queue(
    server: RunningServer, client: HttpQueueClient, veilmq: Veilmq
) -> None:
    client.set("orders", {"receive_wait_s": 20})
    assert veilmq("receive", "orders", "--wait", "0").err == "No message.\n"
    assert server.parked == 0


def test_receive_does_not_delete_messages_that_it_could_not_print(
    server: RunningServer, client: HttpQueueClient
) -> None:
    client.send("orders", "hello")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        words = [*COMMAND, "receive", "orders", "--delete", "--endpoint", server.endpoint]
        result = run(words, env=environment(), timeout=60, **PIPES | {"stdout": closed})
    assert (result.returncode, result.stderr) == (141, "")
    server.advance(30_000)
    assert client.receive("orders")[0].body == "hello"


@pytest.mark.parametrize(
    ("options", "code", "reason"), [([], "InternalFailure", "Try again."), (["--follow"], "AccessDenied", "No.")]
)
def test_a_failed_delete_is_an_error(options: list[str], code: str, reason: str, veilmq: Veilmq) -> None:
    """A permanent error ends --follow too: otherwise it would receive the same messages again and again.

    A page of a proxy does not.
    """
    system = {"SentTimestamp": "1", "ApproximateFirstReceiveTimestamp": "1", "ApproximateReceiveCount": "1"}
    message = {"MessageId": "a", "ReceiptHandle": "r", "MD5OfBody": "m", "Body": "hello", "Attributes": system}
    failure = {"Id": "0", "SenderFault": code == "AccessDenied", "Code": code, "Message": reason}
    replies = [{"QueueUrl": "http://h/1/orders"}, {"Messages": [message]}, {"Failed": [failure]}]
    responses = [reply(200, json.dumps(each).encode()) for each in replies]
    page = "veilmq: The reply is not that of a queue server: 'busy'. Trying again every 2 s.\n" if options else ""
    with ScriptedServer(*responses[:1], *([reply(429, b"busy")] if options else ()), *responses[1:]) as scripted:
        result = veilmq("receive", "orders", "--delete", *options, "--endpoint", scripted.endpoint)
    assert (result.code, result.err) == (1, f"{page}veilmq: 1 of 1 messages were not deleted: {reason}\n")
    assert "body            hello\n" in result.out


# Bulk sends: a message for each line of a file or of standard input.


def bodies(client: HttpQueueClient, queue: str = "orders") -> list[str]:
    return [message.body for _ in range(10) for message in client.receive(queue, count=10, wait_s=0)]


def test_each_line_of_a_file_is_a_message(client: HttpQueueClient, veilmq: Veilmq, tmp_path: Path) -> None:
    """Line ends of both kinds are removed, and empty lines skipped."""
    lines = [f"m{number} für" for number in range(23)]
    (tmp_path / "orders.txt").write_bytes("\r\n".join([*lines[:5], "", *lines[5:]]).encode())
    result = veilmq("send", "orders", "--file", "orders.txt", "--attribute", "colour=red", "--delay", "0")
    result.prints("Sent 23 messages.\n")
    (first,) = client.receive("orders")
    assert (first.body, first.attributes) == (lines[0], {"colour": Attribute(type="String", text="red")})
    assert bodies(client) == lines[1:]


def test_each_line_of_standard_input_is_a_message(
    client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_queue("a.fifo", {"fifo": True, "content_deduplication": True})
    type_in(b"one\ntwo\none\n", monkeypatch)
    result = veilmq("send", "a.fifo", "--stdin-lines", "--group", "g", "--json")
    assert (result.code, json.loads(result.out)) == (0, {"sent": 3, "failed": []})
    assert bodies(client, "a.fifo") == ["one", "two"]


def test_errors_name_the_lines_that_were_not_sent(client: HttpQueueClient, veilmq: Veilmq, tmp_path: Path) -> None:
    """The other lines are sent, also those of the same batch."""
    client.set("orders", {"message_bytes_max": 1_024})
    path = tmp_path / "orders.txt"
    path.write_bytes(b"\n".join([b"a", b"\xff", b"b", b"x" * 1_025, b"y" * 1_048_577, b"c\x01", b"d"]))
    result = veilmq("send", "orders", "--file", str(path))
    assert (result.code, result.out) == (1, "Sent 3 messages.\n")
    *failures, last = result.err.splitlines()
    assert [line.partition(":")[0] for line in failures] == ["line 2", "line 4", "line 5", "line 6"]
    assert failures[0] == "line 2: It is not UTF-8 at byte 0. (InvalidMessageContents)"
    assert last == "veilmq: 4 of 7 lines were not sent."
    assert bodies(client) == ["a", "b", "d"]
    printed = json.loads(veilmq("send", "orders", "--file", str(path), "--json").out)
    assert (printed["sent"], [each["line"] for each in printed["failed"]]) == (3, [2, 4, 5, 6])


def batches(server: RunningServer) -> float:
    """Return the number of batches of sends so far."""
    page = urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode()
    found = re.search(r'^veilmq_requests_total{action="SendMessageBatch",code="OK"} (.*)$', page, re.MULTILINE)
    return float(found[1]) if found else 0.0


def test_batches_of_large_lines_fill_a_request(
    server: RunningServer, client: HttpQueueClient, veilmq: Veilmq, tmp_path: Path
) -> None:
    """Two of these lines, or one of the maximum size."""
    lines = [*(letter * 400_000 for letter in "abcde"), "f" * 1_048_576]
    (tmp_path / "large.txt").write_text("\n".join(lines))
    before = batches(server)
    assert veilmq("send", "orders", "--file", "large.txt").out == "Sent 6 messages.\n"
    assert batches(server) - before == 4
    assert sorted(body[0] for body in bodies(client)) == list("abcdef")


def test_a_bulk_send_stops_at_an_error_of_the_whole_request(veilmq: Veilmq, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(map(str, range(25))))
    result = veilmq("send", "nowhere", "--file", "lines.txt")
    assert (result.code, result.out) == (1, "Sent 0 messages.\n")
    assert result.err.startswith("veilmq: Sending stopped at line 1: ")
    done = [{"Id": str(number), "MessageId": "m", "MD5OfMessageBody": "m"} for number in range(10)]
    replies = [reply(200, b'{"QueueUrl": "http://h/1/orders"}'), reply(200, json.dumps({"Successful": done}).encode())]
    with ScriptedServer(*replies, reply(403, b'{"__type": "AccessDenied", "message": "No."}')) as scripted:
        result = veilmq("send", "orders", "--file", "lines.txt", "--endpoint", scripted.endpoint)
    assert (result.code, result.out) == (1, "Sent 10 messages.\n")
    assert result.err == "veilmq: Sending stopped at line 11: No.\n"
    result = veilmq("send", "orders", "--file", "/proc/self/mem")  # a file that cannot be read any further
    assert (result.code, result.out) == (1, "Sent 0 messages.\n")
    assert result.err == "veilmq: Sending stopped at line 1: [Errno 5] Input/output error\n"


def test_an_interrupted_bulk_send_prints_where_it_stopped(server: RunningServer, client: HttpQueueClient) -> None:
    words = [*COMMAND, "send", "orders", "--stdin-lines", "--endpoint", server.endpoint]
    with Forked(words, env=environment(), **PIPES | {"stdin": subprocess.PIPE}) as process:
        assert process.stdin is not None
        process.stdin.writelines(f"{number}\n" for number in range(11))  # the eleventh waits for more of its batch
        process.stdin.flush()
        server.wait_until(lambda: client.show("orders").visible == 10)
        process.stdin.write("11\n")
        process.stdin.flush()
        pipe_end, nothing = process.stdin.fileno(), bytes(4)
        server.wait_until(lambda: ioctl(pipe_end, FIONREAD, nothing) == nothing)  # it reads again after the reply
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)
    assert output == ("Sent 10 messages.\n", "veilmq: Sending stopped at line 11.\n")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("send orders hello --stdin-lines", "Give one of a message, --file and --stdin-lines."),
        ("send orders --file a --stdin-lines", "Give one of a message, --file and --stdin-lines."),
        ("send orders --file absent", "--file absent: No such file or directory."),
        ("send orders --stdin-lines --dedup-id x", "all lines one message"),
        ("receive orders --follow --wait 0", "--follow needs a --wait of at least 1."),
    ],
)
def test_contradictory_options_are_a_usage_error(arguments: str, words: str, veilmq: Veilmq) -> None:
    veilmq(*arguments.split()).fails(2, words)


def test_a_bulk_send_shows_its_progress_on_a_terminal(
    client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(map(str, range(35))))
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "wb") as terminal:
        words = [*COMMAND, "send", "orders", "--file", "lines.txt", "--endpoint", server.endpoint]
        done = run(words, env=environment(TERM="xterm"), cwd=tmp_path, timeout=60, **PIPES | {"stderr": terminal})
    shown = os.read(ours, 65_536)
    os.close(ours)
    assert (done.returncode, done.stdout) == (0, "Sent 35 messages.\n")
    assert b"messages" in shown
    assert len(bodies(client)) == 35


# `veilmq receive --follow`.


def following(server: RunningServer | ServedFolder) -> Forked:
    words = [*COMMAND, "receive", "orders", "--follow", "--json", "--delete", "--endpoint", server.endpoint]
    return Forked(words, env=environment(), **PIPES)


def test_follow_prints_messages_as_they_arrive(server: RunningServer, client: HttpQueueClient) -> None:
    with following(server) as process:
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


def test_follow_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    """It prints one warning while the server is down; other errors end it."""
    with ServedFolder(tmp_path / "data") as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        with following(server) as process:
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


# `veilmq peek`.


def test_peek_changes_no_message(client: HttpQueueClient, veilmq: Veilmq) -> None:
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


def test_peek_filters_by_state_id_and_count(client: HttpQueueClient, veilmq: Veilmq) -> None:
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
