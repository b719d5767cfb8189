"""Talks with the test that runs the program: JSON objects out, one per line, and answers in. See ../program.py."""

import json
import sys
from typing import Any


def say(**report: Any) -> None:
    """Report something."""
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def ask(question: str, **details: Any) -> Any:
    """Ask the test for something that only it can know or do; returns its answer."""
    say(ask=question, id=0, **details)
    return json.loads(sys.stdin.readline())["answer"]
