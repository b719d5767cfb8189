"""The options and columns of the sink: what is taken, and what is refused while a query is planned."""

import pytest
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from veilmq.spark.options import FAIL, SKIP, OptionWrong, SinkOptions
from veilmq.spark.sink import ColumnsWrong, batch_writer, check, stream_writer

GIVEN = {"queue": "out"}
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "tinyint": ByteType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "texts": MapType(StringType(), StringType()),
    "numbers": MapType(StringType(), IntegerType()),
}


def columns(text: str) -> StructType:
    """Return the schema that `text` says; Spark's own reader of it needs a session."""
    pairs = [column.split() for column in text.split(",")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


BODY = columns("body string")


def test_defaults() -> None:
    options = SinkOptions.of(GIVEN)
    assert (options.connection.queue, options.batch_size, options.bad_rows) == ("out", 1_000, FAIL)
    assert (options.messages_per_s_max, options.writer) == (None, None)


def test_names_are_taken_in_any_case_and_those_of_spark_are_left_alone() -> None:
    given = {"BatchSize": "7", "badrows": "Skip", "checkpointLocation": "/c"}
    options = SinkOptions.of(GIVEN | given | {"asyncProgressTrackingEnabled": "true"})
    assert (options.batch_size, options.bad_rows) == (7, SKIP)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batchSize": "0"}, "batchSize = '0': must be 1 to 5,000"),
        ({"messagesPerSecond": "fast"}, "messagesPerSecond"),
        ({"badRows": "table="}, "badRows = 'table=': must be fail, skip or table=PATH"),
        ({"badRows": "drop"}, "must be fail, skip or table=PATH"),
        ({"writer": "a b"}, "writer"),
        ({"writer": "é"}, "writer"),
        ({"writer": "w" * 65}, "writer"),
        ({"mode": "claims"}, "option mode: does not exist"),
    ],
)
def test_wrong_options_are_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionWrong) as caught:
        SinkOptions.of(GIVEN | given)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "body string",
        "BODY string, Group string",
        "body string, attributes texts, attribute_types texts, dedup_id string, delay_s int",
        "body string, delay_s bigint",
        "body string, delay_s tinyint",
    ],
)
def test_columns_that_a_message_has_are_taken(text: str) -> None:
    check(columns(text))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("group string", "The column body is missing"),
        ("body binary", "use CAST(body AS STRING), or base64(body)"),
        ("body string, id string, group string", 'add select("body", "group")'),
        ("id string", 'add select("body")'),
        ("body string, delay_s double", "delay_s must be int, but is double; use CAST(delay_s AS int)"),
        ("body string, attributes numbers", "attributes must be map<string, string>"),
        ("body string, attributes string", "attributes must be map<string, string>"),
        ("body string, group int", "group must be string"),
        ("body string, BODY string", "occurs twice"),
    ],
)
def test_other_columns_are_told_with_what_to_do(text: str, words: str) -> None:
    with pytest.raises(ColumnsWrong) as caught:
        check(columns(text))
    assert words in str(caught.value)


def test_a_queue_cannot_be_overwritten() -> None:
    with pytest.raises(OptionWrong, match='mode\\("append"\\)'):
        batch_writer(GIVEN, BODY, overwrite=True)
    with pytest.raises(OptionWrong, match="outputMode"):
        stream_writer(GIVEN, BODY, overwrite=True)


def test_a_stream_has_no_name_of_its_own() -> None:
    """A fixed name would outlive a checkpoint, and the batches of the next one be taken for those of the last."""
    with pytest.raises(OptionWrong, match="identified by its checkpoint"):
        stream_writer(GIVEN | {"writer": "w"}, BODY, overwrite=False)


def test_options_and_columns_are_both_checked_when_planning() -> None:
    with pytest.raises(ColumnsWrong):
        batch_writer(GIVEN, columns("id string"), overwrite=False)
    with pytest.raises(OptionWrong, match="queue: is required"):
        stream_writer({}, BODY, overwrite=False)
