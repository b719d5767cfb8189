"""A consumer of jobs that take longer than the 12 hours for which a queue can hide a message: a job is done in parts.

Here a part is four frames; with real films it might be ten hours. Run a server (`veilmq serve`), then this program.
"""

import asyncio
import os

import msgspec

from veilmq.client import HttpQueueClient
from veilmq.consumer import Consumer, Context

ENDPOINT = os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324")
QUEUE = "films"
FRAMES = 10
FRAMES_PER_PART = 4


class Job(msgspec.Struct):
    """A film, and the next frame to render."""

    film: str
    frame: int = 0


app = Consumer(QUEUE, endpoint=ENDPOINT)
client = HttpQueueClient(ENDPOINT)
rendered: dict[str, int] = {}
finished = asyncio.Event()


async def save(film: str, frame: int) -> None:
    """Render and save one frame; the next attempt continues after it."""
    assert rendered.get(film, 0) == frame
    rendered[film] = frame + 1


@app.handler(wait="1s", timeout="11h", stall="5m")
async def render(job: Job, ctx: Context) -> None:
    """Render a part, then send a message for the next part."""
    end = min(job.frame + FRAMES_PER_PART, FRAMES)
    for frame in range(max(job.frame, rendered.get(job.film, 0)), end):
        await save(job.film, frame)
        ctx.progress(frame / FRAMES)  # after five minutes without it, the handler is cancelled and the job retried
    print(f"{job.film}: frames {job.frame} to {end - 1}")
    if end < FRAMES:
        body = msgspec.json.encode(Job(job.film, end)).decode()
        async with ctx.fence():  # renews the lease, so no other consumer has the message
            await asyncio.to_thread(client.send, QUEUE, body)  # the next part is sent before this message is deleted
    else:
        finished.set()


async def main() -> None:
    """Send one film, and wait for its last frame."""
    client.create_queue(QUEUE)
    client.send(QUEUE, msgspec.json.encode(Job("The Veil")).decode())
    async with app.running() as running:
        await finished.wait()
        await running.drained("10s")
    client.close()
    print(f"rendered: {rendered}")


if __name__ == "__main__":
    asyncio.run(main())
