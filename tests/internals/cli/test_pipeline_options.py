"""What the options of jobs name, and a job cannot use."""

from pathlib import Path

import pytest

from veilmq.cli.failures import CommandFailed
from veilmq.cli.pipeline_options import job


def test_a_job_that_cannot_use_a_path_says_which(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as caught, job("report"):
        tmp_path.write_text("<html>", encoding="utf-8")
    assert str(caught.value) == f"{tmp_path} cannot be used: Is a directory."
