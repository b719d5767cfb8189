"""The page of topics: its example runs, and it names every operation and every header."""

import re
from typing import Any

from tests.conftest import TESTS
from tests.server.push_receiver import receiving
from veilmq.client import HttpQueueClient
from veilmq.server.setting_kinds import AllowList
from veilmq.testing import RunningServer
from veilmq.wire.smq import ROUTES

PAGE = (TESTS.parent / "docs" / "topics.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the one block of the page in that language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(text, str)
    return text


def test_every_operation_on_topics_has_a_row() -> None:
    named = {route.name for route in ROUTES.values() if route.path.startswith("topics")}
    assert set(re.findall(r"^\| `(\w+)` \| (?:`[A-Z]+ |the same)", PAGE, re.MULTILINE)) == named


def test_the_example_publishes_to_a_queue_and_to_a_service() -> None:
    with receiving() as receiver, RunningServer(push_allow=f"127.0.0.1:{receiver.port}") as server:
        program = (
            block("python").replace("http://127.0.0.1:9324", server.endpoint).replace(":8080", f":{receiver.port}")
        )
        names: dict[str, Any] = {}
        exec(program, names)
        server.wait_until(lambda: receiver.pushes)
        with HttpQueueClient(server.endpoint) as queues:
            (got,) = queues.receive("jobs")
        names["account"].mns_client.close_connection()
    assert "<Message>hello</Message>" in got.body
    assert "<SubscriptionName>to-a-service</SubscriptionName>" in receiver.pushes[0].body


def test_the_list_of_the_page_is_one() -> None:
    (text,) = re.findall(r'push_allow = "(.*)"', block("toml"))
    allowed = AllowList(text)
    assert allowed.names("hooks.example.com", 80)
    assert allowed.names("partner.example", 8443)
    assert not allowed.names("partner.example", 80)
