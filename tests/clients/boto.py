"""A boto3 client of a server without credentials."""

from typing import Any

import boto3
from botocore.config import Config


def client(endpoint: str, **config: Any) -> Any:
    """Return a client without retries, with a read timeout of a minute; ``config`` is botocore's."""
    settings = {"retries": {"total_max_attempts": 1}, "read_timeout": 60} | config
    return boto3.client(
        "sqs",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(**settings),
    )
