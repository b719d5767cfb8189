"""``format("veilmq")``: what Spark asks for a reader or a writer.

Spark imports this module at the first look-up of any format, so the readers and writers, and what they need, are
imported when they are asked for.
"""

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from veilmq.spark.options import OptionWrong
from veilmq.spark.schema import COLUMNS, SCHEMA

if TYPE_CHECKING:
    from veilmq.spark.source_options import SourceOptions


class VeilmqDataSource(DataSource):
    """A queue as a table or a stream."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Keep the options; whoever reads or writes checks those of its own."""
        super().__init__(dict(options))
        self._load = str(uuid.uuid4())  # travels with the plan: all jobs of one DataFrame have the same

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "veilmq"

    def schema(self) -> str:
        """Return the columns of a message; Spark asks with ``load``, so options that are wrong are told there."""
        from veilmq.spark.source_options import SourceOptions  # noqa: PLC0415

        SourceOptions.of(self.options)
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a snapshot."""
        from veilmq.spark.snapshots import SnapshotReader  # noqa: PLC0415

        options = _checked(self.options, schema)
        if options.mode != "claims":
            raise OptionWrong(
                f"option mode = {options.mode!r}: a batch read needs claims; spark.readStream can do without"
            )
        return SnapshotReader(options, options.snapshot or self._load)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of a stream, by the option ``mode``."""
        from veilmq.spark.sqs_reader import SqsStreamReader  # noqa: PLC0415
        from veilmq.spark.stream_reader import ClaimsStreamReader  # noqa: PLC0415

        options = _checked(self.options, schema)
        if options.snapshot is not None:
            raise OptionWrong("option snapshot: is for batch reads; a stream keeps its place in its checkpoint")
        return ClaimsStreamReader(options) if options.mode == "claims" else SqsStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a DataFrame."""
        from veilmq.spark.sink import batch_writer  # noqa: PLC0415

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer of a stream."""
        from veilmq.spark.sink import stream_writer  # noqa: PLC0415

        return stream_writer(self.options, schema, overwrite=overwrite)


def _checked(given: Mapping[str, str], schema: StructType) -> "SourceOptions":
    from veilmq.spark.source_options import SourceOptions  # noqa: PLC0415

    if schema.names != COLUMNS:
        raise OptionWrong(
            "schema: the columns of the source are fixed; leave .schema(...) out, and select what you need"
        )
    return SourceOptions.of(given)
