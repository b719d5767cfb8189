"""A consumer of jobs that may take longer than a queue hides a message: each is done in parts, by continuations.

Here a part is four frames. With real films it would be ten hours, for a queue hides a message for twelve at most.
Run a server (`veilmq serve`), then this.
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
    """A film, and the frame from which on it is to be rendered."""

    film: str
    frame: int = 0


app = Consumer(QUEUE, endpoint=ENDPOINT)
client = HttpQueueClient(ENDPOINT)
rendered: dict[str, int] = {}
finished = asyncio.Event()


async def save(film: str, frame: int) -> None:
    """Render one frame and keep it: from here the next attempt would go on."""
    assert rendered.get(film, 0) == frame
    rendered[film] = frame + 1


@app.handler(wait="1s", timeout="11h", stall="5m")
async def render(job: Job, ctx: Context) -> None:
    """Render a part, and send what continues it."""
    end = min(job.frame + FRAMES_PER_PART, FRAMES)
    for frame in range(max(job.frame, rendered.get(job.film, 0)), end):
        await save(job.film, frame)
        ctx.progress(frame / FRAMES)  # without it for five minutes, another would try
    print(f"{job.film}: frames {job.frame} to {end - 1}")
    if end < FRAMES:
        body = msgspec.json.encode(Job(job.film, end)).decode()
        async with ctx.fence():  # the message is ours, by a renewal made just now
            await asyncio.to_thread(client.send, QUEUE, body)  # first the continuation, then the end of this part
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
