"""Workers for the command line that report each message: one gets stuck, one uses a process pool."""

import asyncio
import json
import os
import sys

from veilmq.consumer import Consumer

ENDPOINT = os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324")

stuck = Consumer("work", endpoint=ENDPOINT)
apart = Consumer("work", endpoint=ENDPOINT)


def report(body: str) -> None:
    sys.stdout.write(json.dumps({"event": "begun", "body": body, "process": os.getpid()}) + "\n")
    sys.stdout.flush()


@stuck.handler(concurrency=8, prefetch=0, wait="1s")
async def work(body: str) -> None:
    """Report, and block forever if the number of the message is odd."""
    report(body)
    if int(body[1:]) % 2:
        await asyncio.Event().wait()


@apart.handler(pool="process", concurrency=1, wait="1s")
def work_apart(body: str) -> None:
    report(body)


if __name__ == "__main__":
    raise SystemExit(stuck.run())
