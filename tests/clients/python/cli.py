"""Run the commands that the test requests as `aws` does, but in one process, as each start takes a second."""

import contextlib
import io

from awscli.clidriver import create_clidriver

from tests.clients.python.conversation import call_test, report

while (words := call_test("command")) is not None:
    output, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        status = create_clidriver().main(words)
    report(event="done", status=status, output=output.getvalue(), error=error.getvalue())
