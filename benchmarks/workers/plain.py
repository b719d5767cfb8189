"""The usual loop around boto3: receive ten, handle each, delete each."""

import os

import boto3

sqs = boto3.client(
    "sqs",
    endpoint_url=os.environ["VEILMQ_ENDPOINT"],
    region_name="us-east-1",
    aws_access_key_id="any",
    aws_secret_access_key="any",
)
url = sqs.get_queue_url(QueueName=os.environ["QUEUE"])["QueueUrl"]


def nothing(body: str) -> None: ...


while True:
    for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=20).get("Messages", []):
        nothing(message["Body"])
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
