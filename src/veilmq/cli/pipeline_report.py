"""``veilmq pipeline report``."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.options import Endpoint
from veilmq.cli.pipeline_options import ClusterOptions, job, spark_session
from veilmq.cli.statistics_options import StatisticsOptions, facts
from veilmq.client.transport import DEFAULT_ENDPOINT

_HERE = ClusterOptions()
_USUAL = StatisticsOptions()


def report(
    *,
    state: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the state of tune.")],
    to: Annotated[Path, Parameter(metavar="FILE", help="HTML file to write.")],
    title: Annotated[str, Parameter(metavar="TEXT", help="Title of the report.")] = "Visibility timeouts",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    statistics: StatisticsOptions = _USUAL,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Write a report with charts of each queue, and print its path."""
    with job("report"):
        from veilmq.pipeline.report import report

        known = facts(endpoint)
        with spark_session("report", cluster) as spark:
            path = report(
                spark,
                state=state,
                path=to,
                at_ms=time.time_ns() // 1_000_000,
                title=title,
                options=statistics.values(),
                facts=known,
            )
        print(path)
