"""A worker that handles messages with an even number and never ends with the others; it reports what it begins."""

import asyncio
import json
import os
import sys

from veilmq.consumer import Consumer

app = Consumer("work", endpoint=os.environ["VEILMQ_ENDPOINT"])


@app.handler(concurrency=8, prefetch=0, wait="1s")
async def work(body: str) -> None:
    """Report, and get stuck or not."""
    sys.stdout.write(json.dumps({"event": "begun", "body": body}) + "\n")
    sys.stdout.flush()
    if int(body[1:]) % 2:
        await asyncio.Event().wait()


if __name__ == "__main__":
    raise SystemExit(app.run())
