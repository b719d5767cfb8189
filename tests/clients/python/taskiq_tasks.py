"""taskiq-aio-sqs as a client: a task of a taskiq worker. See ../test_other_programs.py."""

import asyncio
import os

from aiobotocore.session import get_session
from taskiq.api import run_receiver_task
from taskiq_aio_sqs import SQSBroker

from tests.clients.python.conversation import report

broker = SQSBroker(
    "taskiq",
    endpoint_url=os.environ["VEILMQ_ENDPOINT"],
    region_name="us-east-1",
    aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
    aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
    wait_time_seconds=0,  # a long poll never ends while the server's clock stands still
)
done: "asyncio.Queue[int]" = asyncio.Queue()


@broker.task  # type: ignore[untyped-decorator]
async def add(first: int, second: int) -> None:
    done.put_nowait(first + second)


async def main() -> None:
    """Create the queue, which the broker does not; send tasks and run them."""
    async with get_session().create_client("sqs", endpoint_url=os.environ["VEILMQ_ENDPOINT"]) as sqs:
        await sqs.create_queue(QueueName="taskiq")
    await broker.startup()
    receiver = asyncio.create_task(run_receiver_task(broker))
    await add.kiq(3, 4)
    assert await asyncio.wait_for(done.get(), 30) == 7
    report(step="task")
    receiver.cancel()
    await asyncio.gather(receiver, return_exceptions=True)
    await broker.shutdown()


asyncio.run(main())
