"""The store on PostgreSQL: any number of stateless nodes on one or more databases."""

from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.postgres.databases import (
    add,
    examine_database,
    examine_together,
    known_urls,
    list_databases,
    remove,
    upgrade,
)
from veilmq.store.postgres.schema import Durability
from veilmq.store.postgres.store import Shards

__all__ = [
    "Durability",
    "PostgresOptions",
    "Shards",
    "add",
    "examine_database",
    "examine_together",
    "known_urls",
    "list_databases",
    "remove",
    "upgrade",
]
