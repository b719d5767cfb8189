"""Receives, requeues and acknowledges a message with kombu, without Celery. See ../test_other_programs.py."""

import os

from kombu import Connection

from tests.clients.python.conversation import say

ENDPOINT = os.environ["VEILMQ_ENDPOINT"].replace("http://", "sqs://any:any@")
OPTIONS = {"region": "us-east-1", "is_secure": False, "visibility_timeout": 60, "wait_time_seconds": 0}
"""Without long polls: the server's clock does not advance, so an empty one would never end."""

with Connection(ENDPOINT, transport_options=OPTIONS) as connection:
    queue = connection.SimpleQueue("kombu")
    queue.put({"order": 7}, headers={"from": "kombu"})
    message = queue.get(timeout=30)
    assert message.payload == {"order": 7}
    assert message.headers["from"] == "kombu"
    say(step="taken")
    message.requeue()
    again = queue.get(timeout=30)
    assert again.payload == {"order": 7}
    again.ack()
    assert queue.qsize() == 0
    say(step="acknowledged")
    queue.close()
