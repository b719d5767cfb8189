"""Which libraries there are."""

import subprocess
import sys

from veilmq.consumer.metrics import is_installed


def test_a_module_is_found_without_being_imported() -> None:
    assert is_installed("veilmq.consumer")
    assert is_installed("prometheus_client")


def test_what_a_consumer_may_not_need_is_not_imported_with_it() -> None:
    """What tells numbers and spans, what tests need, and the server cost a program nothing until it uses them."""
    unwanted = ("prometheus_client", "opentelemetry", "boto3", "pydantic", "rich", "cyclopts", "pyarrow", "pytest",
                "veilmq.server", "veilmq.store.sqlite", "veilmq.testing", "veilmq.cli")  # fmt: skip
    program = f"import sys, veilmq.consumer; print(*({set(unwanted)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_is_not_there_is_no_error() -> None:
    """Neither a package, nor a module of a package that is there, nor one of a package that is not."""
    for name in ("no_such_library", "veilmq.no_such_module", "no_such_library.part"):
        assert not is_installed(name)
