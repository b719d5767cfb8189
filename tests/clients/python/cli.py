"""Runs the commands that the test orders, each as `aws` does, but in one process: most of its time is its start."""

import contextlib
import io

from awscli.clidriver import create_clidriver

from tests.clients.python.conversation import ask, say

while (words := ask("command")) is not None:
    output, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(complaint):
        status = create_clidriver().main(words)
    say(event="done", status=status, output=output.getvalue(), complaint=complaint.getvalue())
