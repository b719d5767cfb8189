"""The store on PostgreSQL: any number of nodes, none of which keeps anything."""

from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.postgres.databases import Listed, add, examine_together, known_urls, listing, remove
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.schema import Durability
from veilmq.store.postgres.store import Shards, examination, open_store, upgrade

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
