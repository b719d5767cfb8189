"""One shard of a claim: what a task reads. A plain read that changes nothing, so several may read it, and again."""

import logging
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from veilmq.client.claims import Claims
from veilmq.client.errors import ClientError
from veilmq.spark.connection import Connection
from veilmq.spark.patience import patiently
from veilmq.spark.refusals import LOST, advised
from veilmq.spark.source_options import SKIP, SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("veilmq.spark")


class ShardPartition(InputPartition):
    """A shard of claim ``number`` of ``source``."""

    def __init__(self, source: str, number: int, shard: int) -> None:
        """Name it."""
        super().__init__((source, number, shard))
        self.source = source
        self.number = number
        self.shard = shard


def read_shard(options: SourceOptions, partition: ShardPartition) -> "Iterator[pa.RecordBatch]":
    """Yield the messages of ``partition`` in their order; raises ``SourceFailed`` where they are not to be had."""
    with advised():
        try:
            yield from _pages(_claims(options.connection), partition, options.patience_s)
        except ClientError as error:
            if error.code not in LOST or options.on_lost_claim != SKIP:
                raise
            _log.warning("Claim %s is skipped: %s", partition.number, error)


@lru_cache
def _claims(at: Connection) -> Claims:
    """Return the client of this worker: it serves many tasks, and they need not connect and ask for the URL again."""
    return Claims(at.endpoint, at.queue, key=at.key)


def _pages(claims: Claims, partition: ShardPartition, patience_s: int) -> "Iterator[pa.RecordBatch]":
    cursor = ""
    while True:
        batches, cursor = patiently(partial(_page, claims, partition, cursor), patience_s)
        yield from batches
        if not cursor:
            return


def _page(claims: Claims, partition: ShardPartition, cursor: str) -> "tuple[list[pa.RecordBatch], str]":
    return claims.page(partition.source, number=partition.number, shard=partition.shard, cursor=cursor)
