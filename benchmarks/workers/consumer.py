"""Our consumer with an empty async handler."""

import os

from veilmq.consumer import Consumer

app = Consumer(os.environ["QUEUE"], endpoint=os.environ["VEILMQ_ENDPOINT"])


@app.handler(concurrency=64)
async def nothing(body: bytes) -> None: ...


if __name__ == "__main__":
    raise SystemExit(app.run())
