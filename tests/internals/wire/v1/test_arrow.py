"""Messages of a claim as Arrow: the same columns as JSON has, whole in a few large batches."""

import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyarrow import ipc

from tests.internals.wire.v1.asking import QUEUE, get, refusal
from tests.internals.wire.v1.claimed import ID_TEXT, MIXED, message
from veilmq.core.properties import Attribute
from veilmq.wire.v1.arrow import SCHEMA, ArrowWriter
from veilmq.wire.v1.claims import BulkRead, JsonWriter
from veilmq.wire.v1.request import encode_error


def table(*pieces: list[object]) -> pa.Table:
    """Return what a reader gets of `pieces`."""
    writer = ArrowWriter("jobs")
    for piece in pieces:
        writer.add(piece)  # type: ignore[arg-type]
    return ipc.open_stream(writer.finish()).read_all()


def test_the_columns_are_those_of_the_contract() -> None:
    assert table().schema.equals(SCHEMA)
    assert {field.name: str(field.type) for field in SCHEMA} == {
        "id": "string",
        "body": "string",
        "attributes": "map<string, string>",
        "attribute_types": "map<string, string>",
        "group": "string",
        "sent_at": "timestamp[us, tz=UTC]",
        "received_at": "timestamp[us, tz=UTC]",
        "receive_count": "int32",
        "sequence_number": "string",
        "queue": "string",
    }


def test_a_message_is_told_with_all_that_it_has() -> None:
    """Beside one that has nothing."""
    full = message("hé", sequence=5, attributes=MIXED, group="g")
    plain = message(attributes={"type": Attribute("String", "order")})
    rows = table([message(), full, plain]).to_pylist()
    assert rows[1] == {
        "id": ID_TEXT,
        "body": "hé",
        "attributes": [("type", "order"), ("price", "17"), ("raw", "AP8=")],
        "attribute_types": [("price", "Number.int"), ("raw", "Binary")],
        "group": "g",
        "sent_at": datetime(2023, 11, 14, 22, 13, 20, 1_000, tzinfo=UTC),
        "received_at": datetime(2023, 11, 14, 22, 13, 20, 999_000, tzinfo=UTC),
        "receive_count": 2,
        "sequence_number": "10000000000000000005",
        "queue": "jobs",
    }
    assert [(row["attributes"], row["attribute_types"], row["group"], row["sequence_number"]) for row in rows[::2]] == [
        ([], None, None, None),
        ([("type", "order")], None, None, None),
    ]


def test_messages_that_carry_nothing_are_told_alike() -> None:
    """Whether one of their batch carries something or not."""
    alone, *_ = table([message("a"), message("b")]).to_pylist()
    beside, *_ = table([message("a"), message(group="g")]).to_pylist()
    assert alone == beside
    assert (alone["attributes"], alone["attribute_types"], alone["group"]) == ([], None, None)


def test_small_pieces_become_few_batches() -> None:
    """And none is lost, or turned round."""
    pieces: list[list[object]] = [[message(str(n)) for n in range(at, at + 500)] for at in range(0, 5_000, 500)]
    whole = table(*pieces)
    assert whole["body"].to_pylist() == [str(n) for n in range(5_000)]
    assert len(whole["body"].chunks) == 2


def test_long_bodies_are_written_early() -> None:
    """So that a few of them are not held twice."""
    writer = ArrowWriter("jobs")
    writer.add([message("x" * 900_000)])
    assert 900_000 <= writer.size_bytes < 905_000
    writer.add([message("é" * 900_000)])
    assert writer.size_bytes > 2_700_000
    assert len(ipc.open_stream(writer.finish()).read_all()) == 2


def test_attributes_are_written_early() -> None:
    """Two thousand messages with ten each kept the event loop busy for tens of milliseconds."""
    many = {f"name{n}": Attribute("String", "v" * 20) for n in range(10)}
    writer = ArrowWriter("jobs")
    for _ in range(4):
        writer.add([message(attributes=many)] * 500)
    batches = ipc.open_stream(writer.finish()).read_all().to_batches()
    assert max(batch.num_rows for batch in batches) <= 1_000


def test_a_server_without_pyarrow_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on to speak JSON."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = refusal("GET", f"/v1/claims/{QUEUE}/read?source=s&number=1&format=arrow")
    assert "pip install 'veilmq[arrow]'" in error.message
    assert encode_error(error).status == 501
    command = get("read", "source=s&number=1").command
    assert isinstance(command, BulkRead)
    assert isinstance(command.writer(), JsonWriter)


def test_pyarrow_is_not_imported_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Understanding a request is quick; whoever makes the writer bears the import."""
    monkeypatch.setitem(sys.modules, "veilmq.wire.v1.arrow", None)
    command = get("read", "source=s&number=1&format=arrow").command
    assert isinstance(command, BulkRead)
    with pytest.raises(ModuleNotFoundError):
        command.writer()
    monkeypatch.undo()
    assert isinstance(command.writer(), ArrowWriter)
