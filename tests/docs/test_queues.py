"""The page of queues' settings: its example does what it says, its table has every setting with its range."""

import re
from pathlib import Path

from veilmq.client import HttpQueueClient
from veilmq.core.settings import QueueSettings
from veilmq.testing import RunningServer
from veilmq.wire.sqs.queue_attributes import SETTINGS
from veilmq.wire.v1.queues import RANGES, SettingFields
from veilmq.wire.v1.routes import ROUTES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocols" / "queues.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_example_makes_a_fifo_queue_that_sqs_cannot_name() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("failed.fifo", {"fifo": True})
        exec(compile(example, str(PAGE), "exec"), {"endpoint": server.endpoint})
        assert client.list_queues() == ["failed.fifo", "orders-in-order"]


def test_the_table_names_every_setting_its_range_and_its_attribute() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    for field in SettingFields.__struct_fields__:
        (row,) = [line for line in rows if f"`{field}`" in line.split(" | ")[0]]
        allowed = RANGES.get(field)
        if allowed is not None and "kept" not in row:
            least = 1 if field == "receives_max" else allowed.minimum  # and 0 for none
            assert f"{least} to {allowed.maximum}" in row
            default = getattr(QueueSettings(), field)
            assert f"| {'`null`' if default is None else default} |" in row
    for name in SETTINGS:
        assert name in TEXT or name.startswith("Kms"), name


def test_every_route_and_every_error_is_on_the_page() -> None:
    for route in ROUTES.values():
        if route.noun == b"queues" and route.verb != b"forward":
            place = f"`{route.method.decode()} {route.path}`"
            assert f"| {place} | {route.permission} |" in TEXT
            for error in route.errors:
                assert f"| `{error.__name__}` |" in TEXT
