"""The tasks of the Celery worker in ../test_programs.py; each reports its runs to the test."""

import os
import threading
import time
from typing import Any

from celery.signals import task_received

from tests.clients.python.celery_app import app
from tests.clients.python.conversation import say

app.conf.task_default_queue = os.environ["QUEUE"]
app.conf.worker_redirect_stdouts = False


def received(**_: Any) -> None:
    """Report that the worker has received a task, which it may run later."""
    say(event="received")


if "REPORT_RECEIVED" in os.environ:
    task_received.connect(received)


def add(task: Any, left: int, right: int) -> None:
    """Report the sum and the time."""
    say(event="add", sum=left + right, at=time.time())


def flaky(task: Any) -> None:
    """Succeed at the third attempt."""
    say(event="flaky", attempt=task.request.retries)
    if task.request.retries < 2:
        raise task.retry(countdown=0.1)


def hang(task: Any) -> None:
    """Run forever; the message would be acknowledged at the end of the task."""
    say(event="hang")
    threading.Event().wait()


TASKS = {
    run.__name__: app.task(bind=True, name=run.__name__, **options)(run)
    for run, options in ((add, {}), (flaky, {}), (hang, {"acks_late": True}))
}
