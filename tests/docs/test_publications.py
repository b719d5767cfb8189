"""The examples of the page of publications do what they say."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from veilmq.client import HttpQueueClient
from veilmq.core import limits
from veilmq.core.claims import Published, WriterView
from veilmq.testing import RunningServer
from veilmq.wire.v1.publications import OutgoingRow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocols" / "publications.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """Give a server with the queue `jobs`."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("jobs")
        yield running


def test_the_python_example_publishes_once(server: RunningServer) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {"endpoint": server.endpoint})
    with HttpQueueClient(server.endpoint) as client:
        assert [message.body for message in client.receive("jobs", count=10, wait_s=0)] == ["a", "b", "c"]
        server.advance(60_000)
        assert "d" in [message.body for message in client.receive("jobs", count=10, wait_s=0)]


def test_the_calls_by_hand_answer_what_the_page_shows(server: RunningServer) -> None:
    (console,) = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    calls = re.findall(r"\$ (curl .*?)\n(\{.*?\})\n", console.replace("\\\n", ""), re.DOTALL)
    assert len(calls) == 2
    for command, answer in calls:
        words = shlex.split(command.replace("$endpoint", server.endpoint))
        url, header, body = words[2], words[4], words[6]
        name, _, value = header.partition(": ")
        reply = urllib3.request("POST", url, body=body, headers={name: value})
        assert (reply.status, json.loads(reply.data)) == (200, json.loads(answer))


def test_the_tables_name_every_field_and_limit() -> None:
    for struct in (OutgoingRow, Published, WriterView):
        for field in struct.__struct_fields__:
            assert f"`{field}`" in TEXT, field
    assert f"up to {limits.STAGE_MESSAGES_MAX:,}" in TEXT
    assert f"up to {limits.PUBLISH_ATTEMPTS_MAX:,}" in TEXT
    assert f"{limits.WRITER_SILENCE_S // 86_400} days" in TEXT
