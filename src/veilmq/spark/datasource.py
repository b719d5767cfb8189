"""``format("veilmq")``: the data source of Spark, which creates readers and writers.

Spark imports this module at the first lookup of any format, so readers and writers are imported only on use.
"""

import sys
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

from veilmq.spark.daemon import suppress_tracebacks

if TYPE_CHECKING:
    from veilmq.spark.options import SourceOptions

if getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") == "pyspark.daemon":
    suppress_tracebacks()  # this is a worker of Spark's planner

SCHEMA = (
    "id string, body string, attributes map<string, string>, attribute_types map<string, string>, group string, "
    "sent_at timestamp_ltz, received_at timestamp_ltz, receive_count int, sequence_number string, queue string"
)
"""The columns of the source, equal to those of the server's Arrow batches.

``attribute_types`` is null unless an attribute has another type than String; values of binary attributes are Base64.
"""

_CATALOG = ("provider", "owner", "comment", "collation", "external", "location", "is_managed_location", "path")
"""Table properties of the catalog; ``path`` is the location that it assigns to a table."""


class VeilmqDataSource(DataSource):
    """A queue as a table or a stream."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Store the options; readers and writers check them."""
        super().__init__(dict(options))
        self._load = str(uuid.uuid4())  # part of the plan: the same for all jobs of one DataFrame

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "veilmq"

    def schema(self) -> StructType | str:
        """Return the columns of a message; Spark calls this in ``load``, so wrong options raise an error there.

        Spark does not pass the options of a catalog table to readers, so the metadata of the first column stores them.
        """
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

        from veilmq.spark.options import SOURCE_OPTIONS, SourceOptions  # noqa: PLC0415
        from veilmq.wire.v1 import arrow  # noqa: PLC0415

        if "provider" not in self.options:
            SourceOptions.of(self.options)
            return SCHEMA
        items = ((name.lower(), text) for name, text in self.options.items())
        options = {name: text for name, text in items if name not in _CATALOG and "." not in name}
        secret = next((each.name for each in SOURCE_OPTIONS if each.secret and each.name.lower() in options), None)
        if secret is not None:
            raise ValueError(f"option {secret}: the catalog would store it; set it in the environment of the driver")
        SourceOptions.of(options)
        columns = from_arrow_schema(arrow.SCHEMA)
        columns.fields[0].metadata = {"veilmq": options}
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of a snapshot."""
        from veilmq.spark.snapshots import SnapshotReader  # noqa: PLC0415

        options = _checked(self.options, schema)
        if options.mode != "claims":
            raise ValueError(
                f"option mode = {options.mode!r}: a batch read requires mode=claims; use spark.readStream instead"
            )
        return SnapshotReader(options, options.snapshot or self._load)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return a reader of a stream, by the option ``mode``."""
        from veilmq.spark.claims_reader import ClaimsStreamReader  # noqa: PLC0415
        from veilmq.spark.sqs_reader import SqsStreamReader  # noqa: PLC0415

        options = _checked(self.options, schema)
        if options.snapshot is not None:
            raise ValueError("option snapshot: is for batch reads only; a stream stores its position in its checkpoint")
        return ClaimsStreamReader(options) if options.mode == "claims" else SqsStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer of a DataFrame."""
        from veilmq.spark.sink import QueueWriter, sink_options  # noqa: PLC0415

        return QueueWriter(sink_options(self.options, schema, overwrite=overwrite, stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Return a writer of a stream."""
        from veilmq.spark.sink import QueueStreamWriter, sink_options  # noqa: PLC0415

        return QueueStreamWriter(sink_options(self.options, schema, overwrite=overwrite, stream=True))


def _checked(options: Mapping[str, str], schema: StructType) -> "SourceOptions":
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    from veilmq.spark.options import OptionWrong, SourceOptions  # noqa: PLC0415
    from veilmq.wire.v1 import arrow  # noqa: PLC0415

    if schema.simpleString() != from_arrow_schema(arrow.SCHEMA).simpleString():
        raise OptionWrong("schema: the columns and types are fixed; remove .schema(...), and select what you need")
    table_options: dict[str, str] = (schema.fields[0].metadata or {}).get("veilmq", {})
    return SourceOptions.of(table_options | {name.lower(): text for name, text in options.items()})
