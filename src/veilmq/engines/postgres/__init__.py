"""The store on PostgreSQL: any number of nodes, none of which keeps anything."""

from veilmq.engines.postgres.databases import Listed, add, examine_together, known_urls, listing, remove
from veilmq.engines.postgres.durability import Durability
from veilmq.engines.postgres.engine import PostgresEngine
from veilmq.engines.postgres.opening import examination, open_store, upgrade
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.shards import Shards

__all__ = [
    "Durability",
    "Listed",
    "PostgresEngine",
    "PostgresOptions",
    "Shards",
    "add",
    "examination",
    "examine_together",
    "known_urls",
    "listing",
    "open_store",
    "remove",
    "upgrade",
]
