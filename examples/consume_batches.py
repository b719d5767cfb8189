"""A consumer that handles messages in batches, for example to load them into a database, and fails some of a batch.

Run a server (`veilmq serve`), then this program.
"""

import asyncio
import os

from veilmq.client import HttpQueueClient, NewMessage
from veilmq.consumer import Batch, Consumer, Drop

ENDPOINT = os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324")

app = Consumer("rows", endpoint=ENDPOINT)
table: list[int] = []


@app.batch(max_size=10, linger="100ms", wait="1s")
async def load(batch: Batch[int]) -> None:
    """Load new rows; drop those that the table already has."""
    for row in batch:
        if row.body in table:
            row.fail(Drop("known"))
        else:
            table.append(row.body)


async def main() -> None:
    """Send ten rows, three of them twice."""
    with HttpQueueClient(ENDPOINT) as client:
        client.create_queue("rows")
        client.send_batch("rows", [NewMessage(body=str(number % 7)) for number in range(10)])
        async with app.running() as running:
            await running.drained("10s")
            counts = running.runners[0].counts.events
    print(f"rows: {sorted(table)}")
    print(f"loaded {counts['acked']}, dropped {counts['dropped']}")


if __name__ == "__main__":
    asyncio.run(main())
