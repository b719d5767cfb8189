"""The cost of signatures and a queue's policy: the cycle on a server with credentials and on one without."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from statistics import median

import boto3

from benchmarks import rates
from benchmarks.bench import Bench, Opened
from benchmarks.kinds import TURNS, per_s
from benchmarks.rates import CYCLE
from benchmarks.row import Row, Section, alone, failed
from benchmarks.servers import VEILMQ, veilmq
from benchmarks.sqs import Sqs

ACCOUNT = "111111111111"
KEY, SECRET = "AKIDBENCH", "a-secret-of-the-benchmark"
CREDENTIALS = f"""
[[accounts]]
id = "{ACCOUNT}"
name = "bench"

[[accounts.keys]]
id = "{KEY}"
secret = "{SECRET}"
"""
STATEMENTS = (
    {"Effect": "Allow", "Principal": {"AWS": "222222222222"}, "Action": "sqs:SendMessage"},
    {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Condition": {"NotIpAddress": {"aws:SourceIp": ["127.0.0.0/8", "10.0.0.0/8"]}},
    },
)


def measure(bench: Bench) -> Section:
    """Measure cycles with and without signatures and a policy in turn."""
    bench.log("signed …")
    try:
        rows = tuple(_rows(bench))
    except (*rates.FAILURES, ImportError) as failure:
        bench.log(f"  {failure}")
        rows = (alone("cycle, signed, with a policy", "", failed(failure)),)
    return Section(name="signed", rows=rows)


def _rows(bench: Bench) -> Iterator[Row]:
    with bench.folder() as folder:
        file = folder / "keys.toml"
        file.touch(mode=0o600)
        file.write_text(CREDENTIALS, encoding="utf-8")
        with bench.opened(VEILMQ) as plain, bench.opened(veilmq("--credentials", str(file))) as signing:
            plain_url, signed_url = _plain_queue(plain), _queue_with_policy(signing)
            signed, shares = [], []
            for _ in range(TURNS):
                unsigned = per_s(plain, CYCLE, plain_url, bench.seconds / 2, bench.connections, {})
                signed.append(per_s(signing, CYCLE, signed_url, bench.seconds / 2, bench.connections, _signing()))
                shares.append(signed[-1] / unsigned)
    yield alone("cycle, signed, with a policy", "requests/s", median(signed))
    yield alone("cycle, signed, with a policy ÷ without", "times", median(shares))


def _plain_queue(opened: Opened) -> str:
    with Sqs(port=opened.port) as sqs:
        return sqs.create_queue("bench")


def _queue_with_policy(opened: Opened) -> str:
    client = boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{opened.port}",
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": str(n), "Resource": f"arn:aws:sqs:us-east-1:{ACCOUNT}:bench", **statement}
            for n, statement in enumerate(STATEMENTS)
        ],
    }
    attributes = {"VisibilityTimeout": "3600", "Policy": json.dumps(policy)}
    url: str = client.create_queue(QueueName="bench", Attributes=attributes)["QueueUrl"]
    return url


def _signing() -> dict[str, str]:
    """Return the variables of `load/sign.lua`; signatures of one instant are valid for the minutes of a load."""
    return {"BENCH_KEY": f"{KEY}:{SECRET}", "BENCH_SIGNED_AT": datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")}
