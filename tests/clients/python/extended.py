"""Send large bodies with AWS's extended client, which stores them in S3; receive, hide and delete all messages.

S3 is moto in this process; QUEUE is the URL of the queue.
"""

import os
from typing import Any

from moto.server import ThreadedMotoServer
from sqs_extended_client import SQSExtendedClientSession

from tests.clients.python.conversation import call_test, report

MESSAGES = 32
BUCKET = "bodies"
URL = os.environ["QUEUE"]
BODY = "x" * 262_145

store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
store.start()
host, port = store.get_host_and_port()
os.environ["AWS_ENDPOINT_URL_S3"] = f"http://{host}:{port}"

session = SQSExtendedClientSession(aws_access_key_id="any", aws_secret_access_key="any", region_name="us-east-1")
sqs = session.client("sqs", endpoint_url=os.environ["VEILMQ_ENDPOINT"])
sqs.large_payload_support = BUCKET
sqs.delete_payload_from_s3 = True
s3 = sqs.s3_client
s3.create_bucket(Bucket=BUCKET)


def objects() -> int:
    return int(s3.list_objects_v2(Bucket=BUCKET)["KeyCount"])


def receive_all() -> list[Any]:
    found: list[Any] = []
    while got := sqs.receive_message(QueueUrl=URL, MaxNumberOfMessages=10).get("Messages"):
        found += got
    return found


for _ in range(MESSAGES):
    sqs.send_message(QueueUrl=URL, MessageBody=BODY)
report(event="sent", objects=objects())
messages = receive_all()
report(event="received", whole=sum(message["Body"] == BODY for message in messages))
for message in messages:
    sqs.change_message_visibility(QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=600)
call_test("hidden")
for message in messages[: MESSAGES // 2]:
    sqs.delete_message(QueueUrl=URL, ReceiptHandle=message["ReceiptHandle"])
for first in range(MESSAGES // 2, MESSAGES, 8):
    entries = [{"Id": str(n), "ReceiptHandle": messages[n]["ReceiptHandle"]} for n in range(first, first + 8)]
    reply = sqs.delete_message_batch(QueueUrl=URL, Entries=entries)
    assert not reply.get("Failed"), reply
report(event="deleted", objects=objects())
store.stop()
