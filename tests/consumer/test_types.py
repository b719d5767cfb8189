"""The errors and types that mypy reports for a program with a consumer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

PROGRAM = """
from dataclasses import dataclass

from veilmq.consumer import Batch, CallNext, Consumer, Context

app = Consumer("orders")

@dataclass
class Order:
    number: int

class Database: ...

@app.on_startup
async def connect() -> Database:
    return Database()

@app.middleware
async def timed(context: Context, call_next: CallNext) -> None:
    await call_next()

@app.handler(queue="orders", concurrency=4, timeout="1h", lease="2m", on_lost="continue", pool="thread")
def ship(order: Order, ctx: Context, database: Database) -> None:
    app.send("notes", {"number": order.number}, delay="5s", attributes={"kind": "x"})

@app.batch(queue="rows", max_size=5, prefetch=None)
def load(batch: Batch[Order]) -> None:
    app.send(ship, batch[0].body)

def test() -> None:
    with app.test_client({Database: Database()}) as client:
        reveal_type(client.send(ship, Order(1)).outcome)

app.send(load, Order(1), group="g")
reveal_type(ship)
reveal_type(app.send(ship, Order(1)))
"""
WRONG = {
    "app.handler(concurency=4)": 'Unexpected keyword argument "concurency"',
    'app.handler(concurrency="4")': 'No overload variant of "handler"',
    'app.handler(pool="fibre")': 'No overload variant of "handler"',
    "app.batch(wait=[])": 'Argument "wait" to "batch"',
    'app.send(ship, "seven")': 'Argument 1 to "send" of "Consumer" has incompatible type "Callable[[Order, Context',
    'app.send(load, "seven")': 'Argument 1 to "send" of "Consumer" has incompatible type "Callable[[Batch[Order]]',
    'app.send("orders", 1, dealy="5s")': 'Unexpected keyword argument "dealy"',
    "app.middleware(ship)": 'Argument 1 to "middleware"',
}  # wrong lines, each with its error


@pytest.mark.slow
def test_mypy_reports_each_wrong_use_of_a_consumer(tmp_path: Path) -> None:
    program = tmp_path / "shop.py"
    program.write_text(f"{PROGRAM}{chr(10).join(WRONG)}\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", str(ROOT / ".mypy_cache")]
    done = subprocess.run(
        [*command, "--config-file=", "--no-warn-unused-ignores", str(program)],
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.partition("shop.py:")[2] for line in done.stdout.splitlines() if "shop.py:" in line]
    revealed = [line.partition("Revealed type is ")[2] for line in lines if "Revealed" in line]
    assert revealed == [
        '"str"',
        '"def (order: shop.Order, ctx: veilmq.consumer.context.Context, database: shop.Database)"',
        '"veilmq.client.messages.SentMessage"',
    ]
    errors = [line for line in lines if " error: " in line]
    first = PROGRAM.count("\n") + 1
    for number, sentence in enumerate(WRONG.values(), start=first):
        assert any(line.startswith(f"{number}: ") and sentence in line for line in errors), (number, done.stdout)
    assert all(int(line.partition(":")[0]) >= first for line in errors), done.stdout
