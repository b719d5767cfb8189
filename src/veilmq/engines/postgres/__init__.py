"""The engine on PostgreSQL: any number of nodes, none of which keeps anything."""

from veilmq.engines.postgres.durability import Durability
from veilmq.engines.postgres.engine import PostgresEngine
from veilmq.engines.postgres.opening import open_engine
from veilmq.engines.postgres.options import PostgresOptions

__all__ = ["Durability", "PostgresEngine", "PostgresOptions", "open_engine"]
