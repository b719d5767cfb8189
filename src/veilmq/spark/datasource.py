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

from veilmq.spark.schema import COLUMNS, SCHEMA

if TYPE_CHECKING:
    from veilmq.spark.source_options import SourceOptions

_OF_CATALOG = ("provider", "owner", "comment", "collation", "external", "location", "is_managed_location", "path")
"""Properties of a table that say nothing of its queue; ``path`` is where a table of files would be."""


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

    def schema(self) -> StructType | str:
        """Return the columns of a message; Spark asks with ``load``, so options that are wrong are told there.

        Of the options of a table in its catalog Spark gives a reader none, only the columns: so they are kept there.
        """
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

        from veilmq.spark.source_options import OPTIONS, SourceOptions  # noqa: PLC0415
        from veilmq.wire.v1 import arrow  # noqa: PLC0415

        if "provider" not in self.options:
            SourceOptions.of(self.options)
            return SCHEMA
        items = ((name.lower(), text) for name, text in self.options.items())
        given = {name: text for name, text in items if name not in _OF_CATALOG and "." not in name}
        secret = next((each.name for each in OPTIONS if each.secret and each.name.lower() in given), None)
        if secret is not None:
            raise ValueError(f"option {secret}: the catalog would keep it; leave it to the environment of the driver")
        SourceOptions.of(given)
        columns = from_arrow_schema(arrow.SCHEMA)
        columns.fields[0].metadata = {"veilmq": given}
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a snapshot."""
        from veilmq.spark.snapshots import SnapshotReader  # noqa: PLC0415

        options = _checked(self.options, schema)
        if options.mode != "claims":
            raise ValueError(
                f"option mode = {options.mode!r}: a batch read needs claims; spark.readStream can do without"
            )
        return SnapshotReader(options, options.snapshot or self._load)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of a stream, by the option ``mode``."""
        from veilmq.spark.sqs_reader import SqsStreamReader  # noqa: PLC0415
        from veilmq.spark.stream_reader import ClaimsStreamReader  # noqa: PLC0415

        options = _checked(self.options, schema)
        if options.snapshot is not None:
            raise ValueError("option snapshot: is for batch reads; a stream keeps its place in its checkpoint")
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
    from veilmq.spark.options import OptionWrong  # noqa: PLC0415
    from veilmq.spark.source_options import SourceOptions  # noqa: PLC0415

    if schema.names != COLUMNS:
        raise OptionWrong(
            "schema: the columns of the source are fixed; leave .schema(...) out, and select what you need"
        )
    of_table: dict[str, str] = (schema.fields[0].metadata or {}).get("veilmq", {})
    return SourceOptions.of(of_table | {name.lower(): text for name, text in given.items()})
