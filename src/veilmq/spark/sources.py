"""Which reader an option asks for, and whether it can be had."""

from collections.abc import Callable, Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from veilmq.spark.options import OptionWrong
from veilmq.spark.schema import COLUMNS
from veilmq.spark.snapshot_reader import SnapshotReader
from veilmq.spark.source_options import CLAIMS, SQS, SourceOptions
from veilmq.spark.sqs_reader import SqsStreamReader
from veilmq.spark.stream_reader import ClaimsStreamReader

_STREAMS: dict[str, Callable[[SourceOptions], DataSourceStreamReader]] = {
    CLAIMS: ClaimsStreamReader,
    SQS: SqsStreamReader,
}


def stream_reader(given: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """Return the streaming reader for the options ``given``; raises ``OptionWrong``."""
    options = SourceOptions.of(given)
    _check_schema(schema)
    if options.snapshot is not None:
        raise OptionWrong("option snapshot: is for batch reads; a stream keeps its place in its checkpoint")
    return _STREAMS[options.mode](options)


def snapshot_reader(given: Mapping[str, str], schema: StructType, *, name: str) -> DataSourceReader:
    """Return the batch reader; ``name`` is that of the snapshot where no option says one. Raises ``OptionWrong``."""
    options = SourceOptions.of(given)
    _check_schema(schema)
    if options.mode != CLAIMS:
        raise OptionWrong(f"option mode = {options.mode!r}: a batch read needs claims; spark.readStream can do without")
    return SnapshotReader(options, options.snapshot or name)


def _check_schema(schema: StructType) -> None:
    if schema.names != COLUMNS:
        raise OptionWrong(
            "schema: the columns of the source are fixed; leave .schema(...) out, and select what you need"
        )
