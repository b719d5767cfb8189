"""Runs the commands that the test sends as `aws` would, but all in one process: its start takes most of the time."""

import contextlib
import io

from awscli.clidriver import create_clidriver

from tests.clients.python.conversation import ask, say

while (words := ask("command")) is not None:
    output, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(stderr):
        status = create_clidriver().main(words)
    say(event="done", status=status, output=output.getvalue(), stderr=stderr.getvalue())
