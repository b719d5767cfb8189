"""Kombu without Celery as a client: receive, requeue and acknowledge a message. See ../test_other_programs.py."""

import os

from kombu import Connection

from tests.clients.python.conversation import report

ENDPOINT = os.environ["VEILMQ_ENDPOINT"].replace("http://", "sqs://any:any@")
OPTIONS = {"region": "us-east-1", "is_secure": False, "visibility_timeout": 60, "wait_time_seconds": 0}
"""Without long polls, which never end while the server's clock stands still."""

with Connection(ENDPOINT, transport_options=OPTIONS) as connection:
    queue = connection.SimpleQueue("kombu")
    queue.put({"order": 7}, headers={"from": "kombu"})
    message = queue.get(timeout=30)
    assert message.payload == {"order": 7}
    assert message.headers["from"] == "kombu"
    report(step="taken")
    message.requeue()
    again = queue.get(timeout=30)
    assert again.payload == {"order": 7}
    again.ack()
    assert queue.qsize() == 0
    report(step="acknowledged")
    queue.close()
