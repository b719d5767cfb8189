import os

import boto3

sqs = boto3.client(
    "sqs",
    endpoint_url=os.environ.get("VEILMQ_ENDPOINT", "http://127.0.0.1:9324"),
    region_name="us-east-1",
    aws_access_key_id="any",
    aws_secret_access_key="any",
)
