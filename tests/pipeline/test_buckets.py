"""The jobs on a bucket of a real S3 server (`make test-all`)."""

import threading

import boto3
from botocore.exceptions import ClientError

from tests.bucket import S3Server


def test_of_writers_at_the_same_moment_one_makes_the_object(s3: S3Server, bucket: str) -> None:
    """What the table's log rests on (`If-None-Match: *`): the others are refused, also later ones."""
    outcomes: list[str] = []
    start = threading.Barrier(8)
    name = bucket.removeprefix("s3://")

    def write(number: int) -> None:
        client = boto3.session.Session().client("s3")
        start.wait()
        try:
            client.put_object(Bucket=name, Key="log/0", Body=str(number).encode(), IfNoneMatch="*")
            outcomes.append(str(number))
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    written = [outcome for outcome in outcomes if outcome.isdigit()]
    assert len(written) == 1
    assert sorted(outcomes)[1:] == ["PreconditionFailed"] * 7
    content = boto3.client("s3").get_object(Bucket=name, Key="log/0")["Body"].read()
    assert content.decode() == written[0]
