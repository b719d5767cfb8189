"""The program's side of the conversation with the test: reports and questions. See ../program.py."""

import json
import sys
from typing import Any


def say(**report: Any) -> None:
    """Send a report to the test."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def ask(question: str, **details: Any) -> Any:
    """Ask the test for something that only it can do, and return its answer."""
    say(ask=question, id=0, **details)
    return json.loads(sys.stdin.readline())["answer"]
