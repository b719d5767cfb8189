"""A consumer in a program: typed messages, one that is retried, and one that cannot be decoded.

Run a server (`veilmq serve`), then this program.
"""

import asyncio
import json
import os
from dataclasses import dataclass

from veilmq.client import HttpQueueClient
from veilmq.consumer import Backoff, Consumer, Context

ENDPOINT = os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324")

app = Consumer("orders", endpoint=ENDPOINT)
shipped = asyncio.Event()


@dataclass
class Order:
    """The body of a message, as JSON."""

    number: int
    item: str


@app.handler(wait="1s", dead_letter="orders-dead", retry=Backoff("1s", jitter="none"))
async def ship(order: Order, ctx: Context) -> None:
    """Ship one order; for ships the first attempt fails."""
    if order.item == "ship" and ctx.attempt == 1:
        raise ConnectionError("the warehouse is closed")
    print(f"order {order.number}: {order.item}, attempt {ctx.attempt}")
    if order.item == "ship":
        shipped.set()


async def main() -> None:
    """Send four messages, and handle them until the queue is empty."""
    with HttpQueueClient(ENDPOINT) as client:
        for queue in ("orders", "orders-dead"):
            client.create_queue(queue)
        async with app.running() as running:
            for number, item in enumerate(("anchor", "ship", "rope"), start=1):
                client.send("orders", json.dumps({"number": number, "item": item}))
                await running.drained("10s")
            client.send("orders", "no order at all")
            await running.drained("10s")
            await shipped.wait()  # it is retried after a second
        (dead,) = client.receive("orders-dead", wait_s=0)
        print(f"dead letter: {dead.body!r}, {dead.attributes['veilmq-error'].text}")


if __name__ == "__main__":
    asyncio.run(main())
