"""The routes of claims, bulk reads, and messages in Arrow."""

import json
import random
import sys
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc

from tests.internals.wire.v1.test_request import ID, MIXED, QUEUE, decode_error, get, invalid_claim_request, message
from veilmq.core import limits
from veilmq.core.claims import ClaimedMessage
from veilmq.core.messages import Attribute, NewMessage
from veilmq.wire.exchange import id_text
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.v1.arrow import COLUMNS, SCHEMA, ArrowWriter, staged_messages
from veilmq.wire.v1.claims import BulkRead, JsonWriter
from veilmq.wire.v1.publications import SLICE_ROWS, Outgoing
from veilmq.wire.v1.request import RowRefused, encode_error

SOURCE = "s-1"


INVALID_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("open", {"source": ""}, "source: expected `str` matching regex"),
    ("open", {"source": "a b"}, "source: expected `str` matching regex"),
    ("open", {"source": "a\n"}, "source: expected `str` matching regex"),
    ("open", {"source": "é"}, "source: expected `str` matching regex"),
    ("open", {"source": "x" * 129}, "source: expected `str` matching regex"),
    ("open", {"source": 1}, "source: expected `str`, got `int`."),
    ("open", {"source": None}, "source: expected `str`, got `null`."),
    ("open", {"consumer": "\x00"}, "consumer: expected `str` matching regex"),
    ("open", {"takeover": 1}, "takeover: expected `bool`, got `int`."),
    ("open", {"hold_s": 59}, "hold_s: expected `int` >= 60."),
    ("open", {"hold_s": limits.CLAIM_HOLD_S.maximum + 1}, f"hold_s: expected `int` <= {limits.CLAIM_HOLD_S.maximum}."),
    ("open", {"lease_s": 4}, "lease_s: expected `int` >= 5."),
    ("open", {"lease_s": 3_601}, "lease_s: expected `int` <= 3600."),
    ("open", {"queue": "other"}, "object contains unknown field `queue`."),
    ("claim", {"number": 1}, "object missing required field `epoch`."),
    ("claim", {"epoch": 1}, "object missing required field `number`."),
    ("claim", {"epoch": -1, "number": 1}, "epoch: expected `int` >= 0."),
    ("claim", {"epoch": 1, "number": 0}, "number: expected `int` >= 1."),
    ("claim", {"epoch": 1, "number": 2**63}, "number: expected `int` <="),
    ("claim", {"epoch": 1, "number": 1.5}, "number: expected `int`, got `float`."),
    ("claim", {"epoch": 1, "number": "1"}, "number: expected `int`, got `str`."),
    ("claim", {"epoch": 1, "number": 1, "messages_max": 0}, "messages_max: expected `int` >= 1."),
    ("claim", {"epoch": 1, "number": 1, "messages_max": 1_000_001}, "messages_max: expected `int` <= 1000000."),
    ("claim", {"epoch": 1, "number": 1, "shard_messages": 0}, "shard_messages: expected `int` >= 1."),
    ("claim", {"epoch": 1, "number": 1, "wait_s": 21}, "wait_s: expected `int` <= 20."),
    ("heartbeat", {}, "object missing required field `epoch`."),
    ("acknowledge", {"epoch": 1, "number": -1}, "number: expected `int` >= 0."),
    ("release", {}, "object missing required field `number`."),
    ("evict", {"number": 1, "message": "x"}, "message: invalid UUID."),
    ("evict", {"number": 1}, "object missing required field `message`."),
    ("close", {"epoch": 1}, "object contains unknown field `epoch`."),
]


@pytest.mark.parametrize(
    ("verb", "fields", "text"), INVALID_FIELDS, ids=[f"{w[0]}{n}" for n, w in enumerate(INVALID_FIELDS)]
)
def test_invalid_fields_are_named(verb: str, fields: dict[str, Any], text: str) -> None:
    assert text in invalid_claim_request(verb, **{"source": SOURCE} | fields)


INVALID_QUERIES = {
    "number=1": "missing required field `source`",
    "source=s": "missing required field `number`",
    "source=s&number=0": "number: expected `int` >= 1.",
    "source=s&number=1x": "number: expected `int`, got `str`.",
    "source=s&number=1&shard=-1": "shard: expected `int` >= 0.",
    "source=s&number=1&format=xml": "format: invalid enum value 'xml'.",
    "source=s&number=1&cursor=" + "x" * 65: "cursor: expected `str` of length <= 64.",
    "source=s&number=1&number=2": "The parameter 'number' has two values; give it once.",
    "source=s&number=1&epoch=1": "unknown field `epoch`",
    "source=s&number=1&messages_max=1": "unknown field `messages_max`",
    "source=%ff&number=1": "The query string must be UTF-8.",
}


@pytest.mark.parametrize("query", INVALID_QUERIES, ids=str)
def test_invalid_parameters_are_named(query: str) -> None:
    error = decode_error("GET", f"/v1/claims/{QUEUE}/read?{query}")
    assert error.code.query == "InvalidRequest"
    assert INVALID_QUERIES[query] in error.message


# Messages of a claim, as JSON and as Arrow.


def table(*parts: list[ClaimedMessage]) -> pa.Table:
    writer = ArrowWriter("jobs")
    for part in parts:
        writer.add(part)
    return ipc.open_stream(writer.finish()).read_all()


def test_the_columns_are_documented() -> None:
    assert table().schema.equals(SCHEMA)
    assert " ".join(f"{field.name}:{field.type}" for field in SCHEMA) == (
        "id:string body:string attributes:map<string, string> attribute_types:map<string, string> group:string "
        "sent_at:timestamp[us, tz=UTC] received_at:timestamp[us, tz=UTC] receive_count:int32 sequence_number:string "
        "queue:string"
    )


def test_messages_have_every_field_in_both_formats() -> None:
    """Batches without properties take a shorter path."""
    full = message("é", sequence=7, attributes=MIXED, group="g", dedup_id="d")
    wanted: dict[str, Any] = {
        "id": id_text(ID),
        "body": "é",
        "attributes": {"type": "order", "price": "17", "raw": "AP8="},
        "attribute_types": {"price": "Number.int", "raw": "Binary"},
        "group": "g",
        "sent_at": 1_700_000_000_001,
        "received_at": 1_700_000_000_999,
        "receive_count": 2,
        "sequence_number": "10000000000000000007",
        "queue": "jobs",
    }
    nulls = {"attribute_types": None, "group": None, "sequence_number": None}
    least = wanted | {"body": "", "attributes": {}} | nulls
    for messages, rows in ([full, message("")], [wanted, least]), ([message("")], [least]):
        writer = JsonWriter("jobs")
        for each in messages:
            writer.add([each])
        shown = json.loads(writer.finish())["messages"]
        assert [{name.removesuffix("_ms"): value for name, value in row.items()} for row in shown] == rows
        for row, found in zip(rows, table(messages).to_pylist(maps_as_pydicts="strict"), strict=True):
            instants = {name: round(found[name].timestamp() * 1_000) for name in ("sent_at", "received_at")}
            assert found | instants == row


def test_small_additions_are_combined_into_batches() -> None:
    parts = [[message(str(n)) for n in range(at, at + 500)] for at in range(0, 5_000, 500)]
    combined = table(*parts)
    assert combined["body"].to_pylist() == [str(n) for n in range(5_000)]
    assert len(combined["body"].chunks) == 2


def test_long_bodies_end_a_batch() -> None:
    writer = ArrowWriter("jobs")
    writer.add([message("x" * 900_000)])
    assert 900_000 <= writer.size_bytes < 905_000
    writer.add([message("é" * 900_000)])
    assert writer.size_bytes > 2_700_000
    assert len(ipc.open_stream(writer.finish()).read_all()) == 2


def test_attributes_end_a_batch() -> None:
    """Writing 2,000 messages with ten attributes each blocked the event loop for tens of milliseconds."""
    many = {f"name{n}": Attribute("String", "v" * 20) for n in range(10)}
    writer = ArrowWriter("jobs")
    for _ in range(4):
        writer.add([message(attributes=many)] * 500)
    batches = ipc.open_stream(writer.finish()).read_all().to_batches()
    assert max(batch.num_rows for batch in batches) <= 1_000


def test_a_server_without_pyarrow_refuses_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = decode_error("GET", f"/v1/claims/{QUEUE}/read?source=s&number=1&format=arrow")
    assert "pip install 'veilmq[arrow]'" in error.message
    assert encode_error(error).status == 501
    command = get("read", "source=s&number=1").command
    assert isinstance(command, BulkRead)
    assert isinstance(command.writer(), JsonWriter)


def test_pyarrow_is_imported_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "veilmq.wire.v1.arrow", None)
    command = get("read", "source=s&number=1&format=arrow").command
    assert isinstance(command, BulkRead)
    with pytest.raises(ModuleNotFoundError):
        command.writer()
    monkeypatch.undo()
    assert isinstance(command.writer(), ArrowWriter)


# Staged messages in Arrow.

OUTGOING = Outgoing(None)
TEXTS = pa.map_(pa.string(), pa.string())
FULL = pa.schema({name: kinds[0] for name, kinds in COLUMNS.items()})


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


def stream_error(content: bytes) -> str:
    with pytest.raises(SqsError) as caught:
        read(content)
    return caught.value.message


def test_messages_are_decoded_in_slices() -> None:
    parts = list(staged_messages(stream(bodies(*["x"] * (SLICE_ROWS + 1)), bodies(), bodies("y")), OUTGOING))
    assert [len(part) for part in parts if part] == [SLICE_ROWS, 1, 1]
    assert sum(1 for part in parts if not part) == 3


@pytest.mark.parametrize("body", ["", None])
def test_the_index_of_a_row_counts_all_batches_and_slices(body: str | None) -> None:
    with pytest.raises(RowRefused) as caught:
        read(stream(bodies("a"), bodies(*["x"] * (SLICE_ROWS + 5), body)))
    assert caught.value.index == 1 + SLICE_ROWS + 5


def test_too_many_batches_are_refused() -> None:
    empty = bodies()
    assert read(stream(*[empty] * limits.STAGE_MESSAGES_MAX)) == ()
    assert "record batches" in stream_error(stream(*[empty] * (limits.STAGE_MESSAGES_MAX + 1)))


def test_a_map_with_too_many_pairs_is_refused_before_reading() -> None:
    """A body of some megabytes can have a million pairs for one message; reading them took a second."""
    pairs = 51
    maps = pa.array([[("a", "1")], None, [(f"k{n}", "") for n in range(pairs)]], TEXTS)
    for name in ("attributes", "attribute_types"):
        batch = pa.RecordBatch.from_pydict({"body": pa.array(["x", "y", "z"]), name: maps})
        with pytest.raises(RowRefused, match=r"attributes \[51\] exceeds") as caught:
            read(stream(batch))
        assert caught.value.index == 2


def test_values_masked_by_null_do_not_count() -> None:
    keys = pa.array([f"k{n}" for n in range(51)])
    maps = pa.MapArray.from_arrays(pa.array([0, 51], pa.int32()), keys, keys, mask=pa.array([True]))
    batch = pa.RecordBatch.from_pydict({"body": pa.array(["x"]), "attributes": maps})
    assert read(stream(batch)) == OUTGOING.from_bodies(["x"])


def test_too_many_messages_are_refused() -> None:
    half = bodies(*["x"] * (limits.STAGE_MESSAGES_MAX // 2 + 1))
    assert "too many for one call" in stream_error(stream(half, half))


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_compressed_batches_are_refused(name: str) -> None:
    """A few bytes can expand to gigabytes."""
    options = pa.ipc.IpcWriteOptions(compression=name)
    assert "compressed" in stream_error(stream(bodies("a" * 100_000), options=options))


@pytest.mark.parametrize("columns", [
    {"body": pa.array([b"a"])}, {"body": pa.array(["a"]).dictionary_encode()},
    {"body": pa.array(["a"]), "id": pa.array(["x"])}, {"group": pa.array(["g"])},
], ids=["binary", "dictionary", "unknown", "no-body"])  # fmt: skip
def test_other_columns_are_refused(columns: dict[str, Any]) -> None:
    assert "column" in stream_error(stream(pa.RecordBatch.from_pydict(columns)))


def test_a_repeated_column_is_refused() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["body", "body"])
    assert "once" in stream_error(stream(batch))


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", b"\xff\xff\xff\xff\x00\x00\x00\x00", stream(bodies("a")) + stream(bodies("b"))],
    ids=["empty", "text", "marker", "two-streams"],
)
def test_invalid_streams_are_refused(content: bytes) -> None:
    assert "Arrow" in stream_error(content) or "column" in stream_error(content)


def test_damaged_streams_decode_or_are_refused() -> None:
    """With random bytes changed, or truncated."""
    chance = random.Random(20_240_229)
    rows = [{"body": f"b{n}", "attributes": {"k": "v"}, "group": "g", "delay_s": n} for n in range(8)]
    sound = stream(pa.RecordBatch.from_pylist(rows, schema=FULL))
    errors = 0
    for _ in range(2_000):
        damaged = bytearray(sound[: chance.randrange(len(sound))] if chance.random() < 0.2 else sound)
        for _ in range(chance.randrange(1, 4)):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            read(bytes(damaged))
        except SqsError:
            errors += 1
    assert errors > 100
