"""A consumer that ships each order once, although its worker is killed and one order is sent twice.

A file, which outlives the workers, records completed work. Run a server (`veilmq serve`), then this program.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from veilmq.client import HttpQueueClient
from veilmq.consumer import ByKey, Consumer, Context, InFile

ENDPOINT = os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324")
QUEUE = "parcels"
NUMBERS = (1, 2, 1, 3)
KILLED_AT = 2


async def work(records: Path) -> None:
    """Handle messages until all are done."""
    store = InFile(records)
    app = Consumer(QUEUE, endpoint=ENDPOINT)
    by_number = ByKey(store, lambda message: str(json.loads(message.body)["number"]), ttl="1h")

    @app.handler(concurrency=1, wait="1s", lease="2s", idempotency=by_number)
    async def ship(order: dict[str, int], ctx: Context) -> None:
        """Ship one order; the first attempt at one of them kills the process."""
        if order["number"] == KILLED_AT and ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"order {order['number']}: shipped", flush=True)

    settled = asyncio.Event()
    app.on("settle", lambda ctx, ending: settled.set())
    with HttpQueueClient(ENDPOINT) as client:
        async with app.running():
            while (status := await asyncio.to_thread(client.show, QUEUE)).visible or status.in_flight:
                await settled.wait()
                settled.clear()
    store.close()


def main() -> None:
    """Send the orders, and restart the worker after it was killed."""
    with HttpQueueClient(ENDPOINT) as client, tempfile.TemporaryDirectory() as folder:
        client.create_queue(QUEUE)
        for number in NUMBERS:
            client.send(QUEUE, json.dumps({"number": number}))
        worker = [sys.executable, __file__, str(Path(folder) / "records.db")]
        died = subprocess.run(worker, check=False).returncode
        print(f"the worker was killed: {died == -signal.SIGKILL}", flush=True)
        subprocess.run(worker, check=True)
        print(f"left in the queue: {client.show(QUEUE).visible}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(work(Path(sys.argv[1])))
    else:
        main()
