"""The store on PostgreSQL: any number of stateless nodes on one or more databases."""

from veilmq.store.postgres import databases
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.postgres.schema import Durability
from veilmq.store.postgres.store import Shards

__all__ = ["Durability", "PostgresOptions", "Shards", "databases"]
