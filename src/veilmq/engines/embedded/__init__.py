"""The embedded engine: one process, one thread that decides, SQLite that keeps."""

from veilmq.engines.embedded.engine import EmbeddedEngine
from veilmq.engines.embedded.folder import FolderError
from veilmq.engines.embedded.options import EngineOptions

__all__ = ["EmbeddedEngine", "EngineOptions", "FolderError"]
