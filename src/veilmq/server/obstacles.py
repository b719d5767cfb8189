"""Why no requests should be sent to a server."""

from veilmq.server.connections import Connections
from veilmq.store.port import Store

DRAINING = "The server is draining: it is about to stop."


async def obstacles(connections: Connections, engine: Store) -> list[str]:
    """Return the reasons as sentences, none where there is none."""
    draining = [DRAINING] if connections.draining else []
    return draining + await engine.obstacles()
