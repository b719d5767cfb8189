"""The store on PostgreSQL: any number of nodes, none of which keeps anything."""

from veilmq.store.postgres.databases import Listed, add, examine_together, known_urls, listing, remove
from veilmq.store.postgres.durability import Durability
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.opening import examination, open_store, upgrade
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.shards import Shards

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
