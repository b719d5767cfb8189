"""Claimed and staged messages in Arrow."""

import random
import sys
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from tests.internals.wire.v1.test_request import ID_TEXT, MIXED, QUEUE, get, message, refusal
from veilmq.core import limits
from veilmq.core.messages import Attribute, NewMessage
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.arrow import SCHEMA, ArrowWriter, staged_messages
from veilmq.wire.v1.claims import BulkRead, JsonWriter
from veilmq.wire.v1.publications import PIECE_ROWS, Outgoing, OutgoingRow
from veilmq.wire.v1.request import RowRefused, encode_error


def table(*pieces: list[object]) -> pa.Table:
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
    alone, *_ = table([message("a"), message("b")]).to_pylist()
    beside, *_ = table([message("a"), message(group="g")]).to_pylist()
    assert alone == beside
    assert (alone["attributes"], alone["attribute_types"], alone["group"]) == ([], None, None)


def test_small_pieces_become_few_batches() -> None:
    pieces: list[list[object]] = [[message(str(n)) for n in range(at, at + 500)] for at in range(0, 5_000, 500)]
    whole = table(*pieces)
    assert whole["body"].to_pylist() == [str(n) for n in range(5_000)]
    assert len(whole["body"].chunks) == 2


def test_long_bodies_are_written_early() -> None:
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
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = refusal("GET", f"/v1/claims/{QUEUE}/read?source=s&number=1&format=arrow")
    assert "pip install 'veilmq[arrow]'" in error.message
    assert encode_error(error).status == 501
    command = get("read", "source=s&number=1").command
    assert isinstance(command, BulkRead)
    assert isinstance(command.writer(), JsonWriter)


def test_pyarrow_is_not_imported_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "veilmq.wire.v1.arrow", None)
    command = get("read", "source=s&number=1&format=arrow").command
    assert isinstance(command, BulkRead)
    with pytest.raises(ModuleNotFoundError):
        command.writer()
    monkeypatch.undo()
    assert isinstance(command.writer(), ArrowWriter)


# Staged messages in Arrow: what is read, and that nothing malformed, foreign or compressed is.

OUTGOING = Outgoing(queue="000000000000/jobs", caller=None)
TEXTS = pa.map_(pa.string(), pa.string())
FULL = pa.schema(
    {"body": pa.string(), "attributes": TEXTS, "attribute_types": TEXTS, "group": pa.string(), "delay_s": pa.int32()}
)


def stream(*batches: Any, options: Any = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def bodies(*texts: str | None) -> Any:
    return pa.RecordBatch.from_pydict({"body": pa.array(texts, pa.string())})


def read(content: bytes) -> tuple[NewMessage, ...]:
    return tuple(chain.from_iterable(staged_messages(content, OUTGOING)))


def refused(content: bytes) -> str:
    with pytest.raises(SqsError) as caught:
        read(content)
    return caught.value.message


def test_bodies_alone() -> None:
    content = stream(bodies("a", "ä"), bodies("c"))
    assert read(content) == OUTGOING.from_bodies(["a", "ä", "c"])


def test_all_columns_and_nulls() -> None:
    rows: list[dict[str, Any]] = [
        {
            "body": "a",
            "attributes": {"k": "v", "n": "1"},
            "attribute_types": {"n": "Number"},
            "group": "g",
            "delay_s": 3,
        },
        {"body": "b", "attributes": None, "attribute_types": None, "group": None, "delay_s": None},
        {"body": "c", "attributes": {}, "attribute_types": {}, "group": "h", "delay_s": 0},
    ]
    content = stream(pa.RecordBatch.from_pylist(rows, schema=FULL))
    assert read(content) == OUTGOING.from_rows([OutgoingRow(**row) for row in rows])


def test_a_slice_is_read_as_what_it_shows() -> None:
    content = stream(bodies(*"abcdef").slice(2, 2))
    assert [message.body for message in read(content)] == ["c", "d"]


def test_large_strings_are_strings() -> None:
    batch = pa.RecordBatch.from_pydict({"body": pa.array(["a"], pa.large_string())})
    assert read(stream(batch)) == OUTGOING.from_bodies(["a"])


def test_a_row_is_counted_through_all_batches() -> None:
    for bad in (bodies("x", ""), bodies("x", None)):
        with pytest.raises(RowRefused) as caught:
            read(stream(bodies("a", "b"), bad))
        assert caught.value.index == 3


def test_messages_come_in_pieces_that_keep_nobody_waiting() -> None:
    pieces = list(staged_messages(stream(bodies(*["x"] * (PIECE_ROWS + 1)), bodies(), bodies("y")), OUTGOING))
    assert [len(piece) for piece in pieces if piece] == [PIECE_ROWS, 1, 1]
    assert sum(1 for piece in pieces if not piece) == 3


def test_a_row_is_counted_through_all_pieces() -> None:
    with pytest.raises(RowRefused) as caught:
        read(stream(bodies("a"), bodies(*["x"] * (PIECE_ROWS + 5), "")))
    assert caught.value.index == 1 + PIECE_ROWS + 5


def test_many_batches_are_refused() -> None:
    empty = bodies()
    assert read(stream(*[empty] * limits.STAGE_MESSAGES_MAX)) == ()
    assert "record batches" in refused(stream(*[empty] * (limits.STAGE_MESSAGES_MAX + 1)))


def test_a_map_of_too_many_pairs_is_refused_unread() -> None:
    """A body of some megabytes can say a million pairs of a message; reading them took a second."""
    pairs = 11
    maps = pa.array([[("a", "1")], None, [(f"k{n}", "") for n in range(pairs)]], TEXTS)
    for name in ("attributes", "attribute_types"):
        batch = pa.RecordBatch.from_pydict({"body": pa.array(["x", "y", "z"]), name: maps})
        with pytest.raises(RowRefused, match=r"attributes \[11\] exceeds") as caught:
            read(stream(batch))
        assert caught.value.index == 2


def test_what_is_behind_a_null_does_not_count() -> None:
    keys = pa.array([f"k{n}" for n in range(11)])
    maps = pa.MapArray.from_arrays(pa.array([0, 11], pa.int32()), keys, keys, mask=pa.array([True]))
    batch = pa.RecordBatch.from_pydict({"body": pa.array(["x"]), "attributes": maps})
    assert read(stream(batch)) == OUTGOING.from_bodies(["x"])


def test_too_many_are_refused() -> None:
    half = bodies(*["x"] * (limits.STAGE_MESSAGES_MAX // 2 + 1))
    assert "too many for one call" in refused(stream(half, half))


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_compressed_batches_are_refused(name: str) -> None:
    """A few bytes of zeros would become gigabytes."""
    options = pa.ipc.IpcWriteOptions(compression=name)
    assert "compressed" in refused(stream(bodies("a" * 100_000), options=options))


@pytest.mark.parametrize("columns", [
    {"body": pa.array([b"a"])}, {"body": pa.array(["a"]).dictionary_encode()},
    {"body": pa.array(["a"]), "id": pa.array(["x"])}, {"group": pa.array(["g"])},
], ids=["binary", "dictionary", "unknown", "no-body"])  # fmt: skip
def test_other_columns_are_refused(columns: dict[str, Any]) -> None:
    assert "column" in refused(stream(pa.RecordBatch.from_pydict(columns)))


def test_a_column_that_is_there_twice_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["body", "body"])
    assert "once" in refused(stream(batch))


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\xff\xff\xff\xff\x00\x00\x00\x00"])
def test_what_is_no_stream_is_refused(content: bytes) -> None:
    assert "Arrow" in refused(content) or "column" in refused(content)


def test_no_damage_gets_through_as_anything_but_messages_or_a_refusal() -> None:
    """Random bytes changed, and the end cut off: each either reads as messages or is refused."""
    chance = random.Random(20_240_229)
    rows = [{"body": f"b{n}", "attributes": {"k": "v"}, "group": "g", "delay_s": n} for n in range(8)]
    sound = stream(pa.RecordBatch.from_pylist(rows, schema=FULL))
    refusals = 0
    for _ in range(2_000):
        damaged = bytearray(sound[: chance.randrange(len(sound))] if chance.random() < 0.2 else sound)
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            read(bytes(damaged))
        except SqsError:
            refusals += 1
    assert refusals > 100
