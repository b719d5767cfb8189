"""Send the tasks that the test requests, each by the arguments of `apply_async` and the task's name."""

import time

from tests.clients.python.celery_app import app
from tests.clients.python.celery_tasks import TASKS
from tests.clients.python.conversation import call_test, report

with app.connection() as connection:
    report(event="ready", protocol=connection.default_channel.sqs().meta.service_model.protocol)

while (order := call_test("order")) is not None:
    called_at = time.time()
    TASKS[order.pop("task")].apply_async(**order)
    report(event="sent", at=called_at)
