"""A Celery application with an empty task, on kombu's SQS transport; run as a program, it sends one task."""

import os

from celery import Celery

app = Celery("drain", broker=os.environ["VEILMQ_ENDPOINT"].replace("http://", "sqs://any:any@"))
app.conf.update(
    task_default_queue=os.environ["QUEUE"],
    task_ignore_result=True,
    worker_prefetch_multiplier=10,
    broker_transport_options={"region": "us-east-1", "is_secure": False, "visibility_timeout": 3600},
)


@app.task(name="nothing")  # type: ignore[untyped-decorator]
def nothing() -> None: ...


if __name__ == "__main__":
    nothing.delay()
