"""A worker that is stopped and continued: its handlers end once their lease was in doubt and confirmed again."""

import asyncio
import json
import os
import sys
from functools import partial

from veilmq.consumer import Consumer, Context, Fixed, LeaseState

LEASE_S = float(os.environ["LEASE_S"])

app = Consumer("work", endpoint=os.environ["VEILMQ_ENDPOINT"])
doubted: set[str] = set()


def report(event: str, ctx: Context) -> None:
    sys.stdout.write(json.dumps({"event": event, "body": ctx.message.body}) + "\n")
    sys.stdout.flush()


def doubt(ctx: Context) -> None:
    """Record the doubt, which may be over before a handler checks."""
    report("suspect", ctx)
    doubted.add(ctx.message_id)


app.on("suspect", doubt)
app.on("lost", partial(report, "lost"))


@app.handler(concurrency=2, prefetch=0, wait="1s", lease=Fixed(LEASE_S, every=LEASE_S / 3))
async def work(body: str, ctx: Context) -> None:
    report("begun", ctx)
    try:
        while not (ctx.message_id in doubted and ctx.lease.state is LeaseState.HELD):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        report("cancelled", ctx)
        raise
    report("done", ctx)


if __name__ == "__main__":
    raise SystemExit(app.run())
