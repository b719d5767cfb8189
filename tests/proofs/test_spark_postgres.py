"""From queue to queue through real Spark and a node on PostgreSQL that is killed: claims and publications outlive it.

`PROVE=whole` takes many more messages, and kills the node at another time, too.
"""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.client.traffic import drained, send_in_order
from tests.conftest import EVERYTHING
from tests.proofs.served import StartNode
from tests.proofs.test_spark_forward import (
    FIFO_IN,
    FIFO_OUT,
    GROUPS,
    MESSAGES,
    SMALL,
    WHOLE,
    check_nothing_left,
    create,
    forward_of,
)
from tests.spark.forward import PATIENCE_S
from veilmq.client import HttpQueueClient, NewMessage

pytestmark = [pytest.mark.timeout(900), EVERYTHING]


@pytest.mark.parametrize("accident", ["published:1", *(["reading:2"] if WHOLE else [])])
def test_a_node_is_killed(spark: SparkSession, start_node: StartNode, tmp_path: Path, accident: str) -> None:
    """Each group arrives whole, once and in its order, at a node that knows nothing of what was before."""
    node = start_node()
    endpoint = f"http://127.0.0.1:{node.port}"

    def start_again() -> None:
        node.await_end(PATIENCE_S)
        node.start()

    with HttpQueueClient(endpoint) as client, ThreadPoolExecutor(1) as thread:
        create(client)
        numbered = [NewMessage(body=str(number), group=f"g{number % GROUPS}") for number in range(MESSAGES)]
        send_in_order(client, FIFO_IN, numbered)
        own = {"accident": f"{accident}:kill-server", "serverpid": str(node.pid)}
        forward = forward_of(endpoint, tmp_path, FIFO_IN, FIFO_OUT)
        if accident.startswith("reading"):
            forward = replace(forward, options={**SMALL, **own})
        else:
            forward = replace(forward, write_options=own)
        again = thread.submit(start_again)
        forward.run(spark)
        again.result()
        arrived: defaultdict[str | None, list[int]] = defaultdict(list)
        for message in drained(client, FIFO_OUT):
            arrived[message.group].append(int(message.body))
        assert arrived == {f"g{group}": list(range(group, MESSAGES, GROUPS)) for group in range(GROUPS)}
        check_nothing_left(client, endpoint, FIFO_IN, FIFO_OUT)
