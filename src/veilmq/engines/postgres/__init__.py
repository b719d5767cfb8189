"""The engine on PostgreSQL: any number of nodes, none of which keeps anything."""

from veilmq.engines.postgres.durability import Durability
from veilmq.engines.postgres.engine import PostgresEngine
from veilmq.engines.postgres.opening import examination, open_engine, open_shards, upgrade
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.shards import Shards
from veilmq.engines.postgres.shards_doctor import examine_together

__all__ = [
    "Durability",
    "PostgresEngine",
    "PostgresOptions",
    "Shards",
    "examination",
    "examine_together",
    "open_engine",
    "open_shards",
    "upgrade",
]
