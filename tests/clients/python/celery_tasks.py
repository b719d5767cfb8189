"""The tasks of the Celery worker in ../test_programs.py; each reports to the test."""

import os
import threading
import time
from typing import Any

from celery.signals import task_received

from tests.clients.python.celery_app import app
from tests.clients.python.conversation import report

app.conf.task_default_queue = os.environ["QUEUE"]
app.conf.worker_redirect_stdouts = False


def received(**_: Any) -> None:
    report(event="received")


if "RECEIVED" in os.environ:
    task_received.connect(received)


def add(task: Any, left: int, right: int) -> None:
    report(event="add", sum=left + right, at=time.time())


def flaky(task: Any) -> None:
    """Succeed at the third attempt."""
    report(event="flaky", attempt=task.request.retries)
    if task.request.retries < 2:
        raise task.retry(countdown=0.1)


def hang(task: Any) -> None:
    """Never end; the message is acknowledged at the end of the task."""
    report(event="hang")
    threading.Event().wait()


TASKS = {
    run.__name__: app.task(bind=True, name=run.__name__, **options)(run)
    for run, options in ((add, {}), (flaky, {}), (hang, {"acks_late": True}))
}
