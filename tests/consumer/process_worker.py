"""A worker whose handler runs in a process, for the command line; it reports in which."""

import json
import os
import sys

from veilmq.consumer import Consumer

app = Consumer("work", endpoint=os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324"))


@app.handler(pool="process", concurrency=1, wait="1s")
def work(body: str) -> None:
    sys.stdout.write(json.dumps({"event": "begun", "body": body, "process": os.getpid()}) + "\n")
    sys.stdout.flush()
