"""A worker that reports its start, messages and shutdown as lines of JSON.

A message that is the path of a pipe blocks until the pipe is opened for writing; ``die`` kills the process once.
"""

import json
import os
import signal
import sys
from pathlib import Path

from veilmq.consumer import Consumer, Context

app = Consumer("work")


def report(event: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")
    sys.stdout.flush()


@app.on_startup
def begin() -> None:
    report("started", number=os.environ.get("VEILMQ_PROCESS"))


@app.on_shutdown
def end() -> None:
    report("stopped")


@app.handler(concurrency=1, prefetch=0, lease="4s")
def work(body: str, ctx: Context) -> None:
    report("begun", body=body)
    if body == "die" and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if body.startswith("/"):
        Path(body).read_bytes()
        ctx.check()
    report("done", body=body)
