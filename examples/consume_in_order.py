"""A consumer of a FIFO queue: steps of one account in order, several accounts concurrently, one failure and its retry.

Run a server (`veilmq serve`), then this program.
"""

import asyncio
import os
from collections import defaultdict
from uuid import uuid4

from veilmq.client import HttpQueueClient, NewMessage
from veilmq.consumer import Consumer, Context, RetryLater

ENDPOINT = os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324")
QUEUE = "steps.fifo"
STEPS = ("open", "deposit", "close")

app = Consumer(QUEUE, endpoint=ENDPOINT)
done: dict[str, list[str]] = defaultdict(list)
finished = asyncio.Event()


@app.handler(concurrency=4, wait="1s")
async def step(name: str, ctx: Context) -> None:
    """Do one step. The first deposit of bob fails once, and his later steps wait for it."""
    if (ctx.group, name, ctx.attempt) == ("bob", "deposit", 1):
        raise RetryLater("1s")
    done[ctx.group or ""].append(name)
    if sum(map(len, done.values())) == 3 * len(STEPS):
        finished.set()


async def main() -> None:
    """Send three steps for each of three accounts, and print the order in which they were done."""
    with HttpQueueClient(ENDPOINT) as client:
        client.create_queue(QUEUE, {"fifo": True})
        for name in STEPS:
            messages = [
                NewMessage(body=name, group=account, dedup_id=str(uuid4())) for account in ("ann", "bob", "cid")
            ]
            client.send_batch(QUEUE, messages)
        async with app.running():
            await finished.wait()
    for account, steps in sorted(done.items()):
        print(f"{account}: {', '.join(steps)}")


if __name__ == "__main__":
    asyncio.run(main())
