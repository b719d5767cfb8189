"""The page of inspection has every route, with its permission, its parameters and the fields of its answer."""

from pathlib import Path

import pytest

from veilmq.wire.v1.queues import InspectFields, Lease, LeaseFields, ListedMessage, PeekedRow, PeekFields
from veilmq.wire.v1.routes import ROUTES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocols" / "inspection.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
FIELDS = {"/v1/messages/{account}/{queue}": InspectFields, "/v1/leases/{account}/{queue}": LeaseFields}


@pytest.mark.parametrize("key", [key for key in ROUTES if b" messages/" in key or b" leases/" in key], ids=bytes.decode)
def test_every_route_is_there_with_its_parameters(key: bytes) -> None:
    route = ROUTES[key]
    (row,) = [row for row in ROWS if row.startswith(f"| `GET {route.path}` | {route.permission} |")]
    for field in FIELDS.get(route.path, PeekFields).__struct_fields__:
        assert f"`{field}`" in row


def test_every_field_of_an_answer_is_there() -> None:
    first = "".join(row.split(" | ")[0] for row in ROWS)
    for shown in (ListedMessage, PeekedRow, Lease):
        for field in shown.__struct_fields__:
            assert f"`{field}`" in first
