"""Options that jobs of the pipeline share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed, UsageError
from veilmq.cli.options import whole_number
from veilmq.core.limits import CLAIM_HOLD_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BadRows = Annotated[
    str,
    Parameter(
        metavar="fail|skip|table=PATH",
        help="If a row cannot be sent: fail, leave it out, or write it to files in PATH.",
    ),
]
CONTINUOUS = Parameter(
    negative=(), show_default=False, help="Run until stopped, instead of until all visible messages are read."
)
HOLD = whole_number(CLAIM_HOLD_S, "Seconds for which messages stay claimed while the job is down.")
ON_LOST_CLAIM = Parameter(help="After a longer downtime: fail, or continue and log the messages delivered twice.")
_CONF = "Spark setting NAME=VALUE; may be repeated."


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Where the job runs: by default in this process, or where spark-submit started it."""

    master: Annotated[
        str | None, Parameter(metavar="URL", help="Spark master, such as local[4] or spark://HOST:7077.")
    ] = None
    remote: Annotated[str | None, Parameter(metavar="URL", help="Spark Connect server, sc://HOST:15002.")] = None
    conf: Annotated[
        tuple[str, ...], Parameter(name="--conf", negative=(), show_default=False, metavar="NAME=VALUE", help=_CONF)
    ] = ()
    verbose: Annotated[bool, Parameter(negative=(), show_default=False, help="Print Spark's log.")] = False

    def settings(self) -> dict[str, str]:
        """Return the Spark settings by name; raises ``UsageError``."""
        pairs = [text.partition("=") for text in self.conf]
        for text, (name, equals, _) in zip(self.conf, pairs, strict=True):
            if not equals or not name:
                raise UsageError(f"--conf {text}: must be NAME=VALUE, such as spark.executor.memory=4g.")
        return {name: value for name, _, value in pairs}


@contextmanager
def job(name: str) -> Iterator[None]:
    """Report a missing extra or the failure of a job in one line."""
    with needs_extra("spark", command=f"pipeline {name}"):
        from veilmq.pipeline.session import PipelineFailed
    try:
        with needs_extra("spark", command=f"pipeline {name}"):
            yield
    except PipelineFailed as error:
        raise CommandFailed(str(error)) from error
    except OSError as error:
        if error.filename is None:
            raise  # not about a file
        raise CommandFailed(f"{error.filename} cannot be used: {error.strerror}.") from error


@contextmanager
def spark_session(name: str, options: ClusterOptions) -> Iterator["SparkSession"]:
    """Run Spark for the job ``name``, where ``options`` specify."""
    if options.master and options.remote:
        raise UsageError("--master and --remote: give only one of them.")
    settings: dict[str, Any] = options.settings()
    from veilmq.pipeline.session import Cluster, open_session

    cluster = Cluster(
        master=options.master or "", remote=options.remote or "", settings=settings, verbose=options.verbose
    )
    with open_session(f"veilmq pipeline {name}", cluster) as spark:
        yield spark
