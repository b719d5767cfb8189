"""The SQLite dialect of the store: a data folder that belongs to one process."""

from veilmq.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
