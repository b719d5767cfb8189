"""A worker that is stopped and continued: its handlers end when their lease has been in doubt and was proved again."""

import asyncio
import json
import os
import sys
from functools import partial

from veilmq.consumer import Consumer, Context, Fixed, LeaseState

LEASE_S = float(os.environ["LEASE_S"])

app = Consumer("work", endpoint=os.environ["VEILMQ_ENDPOINT"])
doubted: set[str] = set()


def say(event: str, ctx: Context) -> None:
    sys.stdout.write(json.dumps({"event": event, "body": ctx.message.body}) + "\n")
    sys.stdout.flush()


def doubt(ctx: Context) -> None:
    """Note it; the doubt may be over before a handler looks."""
    say("suspect", ctx)
    doubted.add(ctx.message_id)


app.on("suspect", doubt)
app.on("lost", partial(say, "lost"))


@app.handler(concurrency=2, prefetch=0, wait="1s", lease=Fixed(LEASE_S, every=LEASE_S / 3))
async def work(body: str, ctx: Context) -> None:
    say("begun", ctx)
    try:
        while not (ctx.message_id in doubted and ctx.lease.state is LeaseState.HELD):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        say("cancelled", ctx)
        raise
    say("done", ctx)


if __name__ == "__main__":
    raise SystemExit(app.run())
