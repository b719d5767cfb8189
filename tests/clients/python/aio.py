"""aioboto3 as a client, on one event loop. See ../test_other_programs.py."""

import asyncio
import os
from typing import Any

import aioboto3

from tests.clients.python.conversation import call_test, report


async def queue(sqs: Any, name: str, **attributes: str) -> str:
    url: str = (await sqs.create_queue(QueueName=name, Attributes=attributes))["QueueUrl"]
    return url


async def receive(sqs: Any, url: str, **options: Any) -> list[Any]:
    wanted = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
    found: list[Any] = (await sqs.receive_message(QueueUrl=url, **wanted, **options)).get("Messages", [])
    return found


async def messages(sqs: Any) -> None:
    """Send two messages at once; receive and delete them."""
    url = await queue(sqs, "aio-message")
    attributes = {"seal": {"DataType": "Binary", "BinaryValue": b"\0\xff\x80"}}
    await asyncio.gather(
        *(sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes) for body in "ab")
    )
    got = await receive(sqs, url)
    assert sorted(message["Body"] for message in got) == ["a", "b"]
    assert got[0]["MessageAttributes"]["seal"]["BinaryValue"] == b"\0\xff\x80"
    entries = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(got)]
    reply = await sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert len(reply["Successful"]) == 2


async def visibility(sqs: Any) -> None:
    """Release a message, and let a lease expire."""
    url = await queue(sqs, "aio-visibility")
    await sqs.send_message(QueueUrl=url, MessageBody="again")
    [first] = await receive(sqs, url)
    await sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    [second] = await receive(sqs, url)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    assert await receive(sqs, url) == []
    call_test("advance", ms=30_000)
    assert len(await receive(sqs, url)) == 1


async def long_poll(sqs: Any) -> None:
    """Wait for a message that is sent later."""
    url = await queue(sqs, "aio-poll")
    poll = asyncio.create_task(receive(sqs, url, WaitTimeSeconds=20))
    await asyncio.to_thread(call_test, "parked")
    await sqs.send_message(QueueUrl=url, MessageBody="woken")
    assert [message["Body"] for message in await poll] == ["woken"]


async def errors(sqs: Any) -> None:
    try:
        await sqs.get_queue_url(QueueName="aio-none")
    except sqs.exceptions.QueueDoesNotExist:
        return
    raise AssertionError("there is no such queue")


async def main() -> None:
    async with aioboto3.Session().client("sqs", endpoint_url=os.environ["VEILMQ_ENDPOINT"]) as sqs:
        for step in (messages, visibility, long_poll, errors):
            await step(sqs)
            report(step=step.__name__)


asyncio.run(main())
