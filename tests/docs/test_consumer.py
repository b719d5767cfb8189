"""The page of consumers says what there is: its first program works, its tables are the options, hooks and endings."""

import asyncio
import inspect
import re
from functools import partial

from tests.consumer import acting
from tests.consumer.workbench import until
from tests.tidy.tree import ROOT
from veilmq.client import HttpQueueClient
from veilmq.consumer import Consumer, Running, clock
from veilmq.consumer.handlers import HOOKS, Hooks
from veilmq.consumer.metrics import EVENTS
from veilmq.consumer.status import consumer_metrics
from veilmq.testing import RunningServer, SystemClock

TEXT = (ROOT / "docs" / "consumer.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text of one section."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_whole_program_works() -> None:
    """All of it but its last line, which waits for a signal."""
    (program,) = re.findall(r"```python\n(from veilmq.*?)```", TEXT.partition("\n## ")[0], re.DOTALL)
    program, run = program.rstrip().rsplit("\n", 1)
    assert run == "app.run()"
    with RunningServer(clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders", {"receive_wait_s": 1})
        client.send("orders", "hello")
        names: dict[str, Consumer] = {}
        exec(program.replace("http://127.0.0.1:9324", server.endpoint), names)

        async def scenario() -> None:
            async with names["app"].running() as running:
                await until(lambda: running.runners[0].counts.events["acked"])
                for _ in range(2):
                    running.request_stop()

        asyncio.run(scenario())
        assert client.show("orders").in_flight == 0


def test_the_table_of_options_is_complete() -> None:
    named = re.findall(r"^\| `(\w+)` \|", section("Options of a handler"), re.MULTILINE)
    parameters = set(inspect.signature(Consumer.declare).parameters) - {"self", "function", "batching"}
    assert sorted(named) == sorted(parameters)


def test_the_metrics_and_events_are_named() -> None:
    """Every one, in the table."""
    app = Consumer("orders", endpoint="http://127.0.0.1:1")
    app.declare(acting.act_async)

    async def names() -> list[str]:
        connect = partial(HttpQueueClient, "http://127.0.0.1:1")
        running = Running(app.handlers, connect, clock.SystemClock(), hooks=Hooks(), grace_s=0)
        return [metric.name for metric in consumer_metrics(running.runners, running.renewals)]

    table = section("Watching").partition("**Spans.**")[0]
    for name in (*asyncio.run(names()), *EVENTS):
        assert f"`{name.removeprefix('veilmq_consumer_')}`" in table


def test_the_hooks_are_named() -> None:
    for name in HOOKS:
        assert f"`{name}`" in section("Watching")
