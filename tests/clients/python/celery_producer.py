"""Sends the tasks that the test asks for: each order has the task's name and the arguments of `apply_async`."""

import time

from tests.clients.python.celery_app import app
from tests.clients.python.celery_tasks import TASKS
from tests.clients.python.conversation import ask, say

with app.connection() as connection:
    say(event="ready", protocol=connection.default_channel.sqs().meta.service_model.protocol)

while (order := ask("order")) is not None:
    called_at = time.time()
    TASKS[order.pop("task")].apply_async(**order)
    say(event="sent", at=called_at)
