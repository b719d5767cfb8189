"""One run of `wrk` with a script of `load/`, and its report.

The scripts print their report as one line `BENCH {…}`; the rest of wrk's output is ignored. The CPU time of the load
generator is measured too (`load_cores`): near 1.0 wrk, which runs one thread, was the bottleneck, not the server.
"""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "load"
ERRORS = ("errors_connect", "errors_read", "errors_write", "errors_status", "errors_timeout")
GRACE_S = 30.0


class LoadError(Exception):
    """wrk is missing, did not end in time, or printed no report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Script, duration and connections of a run."""

    script: str
    seconds: float
    connections: int = 64
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """The report of wrk. `counts` has the script's own counters (see `load/sqs.lua`)."""

    requests: int
    duration_s: float
    p50_ms: float
    p99_ms: float
    errors: Mapping[str, int]
    counts: Mapping[str, int]
    load_cores: float

    @property
    def succeeded(self) -> int:
        """Return the number of requests that succeeded."""
        return self.requests - self.errors["status"]

    @property
    def requests_per_s(self) -> float:
        """Successful requests per second; a refused request is no work done."""
        return self.succeeded / self.duration_s if self.duration_s else 0.0

    def count_per_s(self, name: str) -> float:
        return self.counts[name] / self.duration_s if self.duration_s else 0.0


def installed() -> bool:
    return shutil.which("wrk") is not None


def run(load: Load, *, url: str) -> LoadResult:
    """Run `load` against `url`. Raises `LoadError` with what to do about it."""
    if not installed():
        raise LoadError("wrk is not installed: `apt-get install wrk` or `brew install wrk`")
    before = _children_cpu_s()
    output = _output(_command(load, url=url), load)
    cpu_s = _children_cpu_s() - before
    return parse(output, cpu_s=cpu_s)


def parse(output: str, *, cpu_s: float) -> LoadResult:
    """Return the report in wrk's `output`; `cpu_s` is the CPU time of wrk."""
    lines = [line for line in output.splitlines() if line.startswith("BENCH ")]
    if len(lines) != 1:
        raise LoadError(f"wrk printed {len(lines)} reports, expected one. Its output:\n{output[-2000:]}")
    report: dict[str, int] = json.loads(lines[0].removeprefix("BENCH "))
    duration_s = report.pop("duration_us") / 1e6
    return LoadResult(
        requests=report.pop("requests"),
        duration_s=duration_s,
        p50_ms=report.pop("p50_us") / 1e3,
        p99_ms=report.pop("p99_us") / 1e3,
        errors={name.removeprefix("errors_"): report.pop(name) for name in ERRORS},
        counts=report,
        load_cores=cpu_s / duration_s if duration_s else 0.0,
    )


def _command(load: Load, *, url: str) -> list[str]:
    script = SCRIPTS / f"{load.script}.lua"
    seconds = max(1, round(load.seconds))
    return ["wrk", "-t1", f"-c{load.connections}", f"-d{seconds}s", "--latency", "-s", str(script), url]


def _output(command: list[str], load: Load) -> str:
    environment = {**os.environ, **load.environment, "LUA_PATH": f"{SCRIPTS}/?.lua"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=load.seconds + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise LoadError(f"wrk did not end {GRACE_S:.0f} s after its {load.seconds:.0f} s were over") from late
    if done.returncode != 0:
        raise LoadError(f"wrk ended with status {done.returncode}:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout + done.stderr


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
