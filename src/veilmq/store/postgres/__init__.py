"""The store on PostgreSQL: any number of nodes, none of which keeps anything."""

from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.postgres.databases import add, examination, examine_together, known_urls, listing, remove, upgrade
from veilmq.store.postgres.schema import Durability
from veilmq.store.postgres.store import Shards

__all__ = [
    "Durability",
    "PostgresOptions",
    "Shards",
    "add",
    "examination",
    "examine_together",
    "known_urls",
    "listing",
    "remove",
    "upgrade",
]
