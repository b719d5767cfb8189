"""The cost of a `tune` run with ten new files of the event log, by the number of old files: time, bytes, requests.

The log is in a folder, or in a bucket of an S3 server whose access log counts requests. `make prove-incremental` has
10,000 old files.
"""

import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.bucket import S3Server
from tests.pipeline.closed import NOON, row
from veilmq.core.receipts import Outcome
from veilmq.events.parquet import RANGES, SCHEMA, RangeEntry, encode_parquet, entry_name
from veilmq.pipeline.event_log import CellStore
from veilmq.pipeline.options import Cluster
from veilmq.pipeline.session import open_session

WHOLE = os.environ.get("PROVE") == "whole"
OLD = (100, 1_000, 10_000) if WHOLE else (20, 400)
NEW = 10
ROWS = 200
HOURS = 240
NODE = "a0000001"
DAY_MS = 86_400_000
BYTES_GROWTH_MAX = 1.5
SECONDS_GROWTH_MAX = 2.0  # on a shared machine; listing 10,000 files by folder takes longer
MORE_REQUESTS_MAX = 10

Read = Callable[[], tuple[int, Mapping[str, int]]]  # returns the bytes read so far, and requests by kind


@dataclass(frozen=True, slots=True)
class Cost:
    old: int
    seconds: float
    read_bytes: int
    requests: Mapping[str, int]

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.requests.items()))
        read = f"{sum(self.requests.values())} requests ({kinds})" if kinds else f"{self.read_bytes:,} bytes read"
        return f"{self.old:>6,} old files and {NEW} new: {self.seconds:.1f} s, {read}"


class Log:
    """An event log of ten days in a folder; all files have one content."""

    def __init__(self, folder: Path, etag: bytes = b"") -> None:
        """Prepare the content; `etag` is what the S3 server of the tests stores with each object."""
        rows = [row(Outcome.DELETED, 100 + each, received_at=NOON) for each in range(ROWS)]
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in rows], schema=SCHEMA)
        self._content = encode_parquet(table).to_pybytes()
        self._folder, self._etag = folder, etag
        self._files = 0

    def add(self, files: int) -> None:
        (self._folder / RANGES / NODE).mkdir(parents=True, exist_ok=True)
        for number in range(self._files, self._files + files):
            first, last, hour = number * ROWS + 1, (number + 1) * ROWS, number * 7 % HOURS
            folder = f"date=2026-01-{1 + hour // 24:02}/hour={hour % 24:02}"
            name = f"{folder}/{NODE}-{first:012d}-{last:012d}.parquet"
            (self._folder / folder).mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_bytes(self._content)
            if self._etag:
                os.setxattr(self._folder / name, "user.etag", self._etag)
            entry = RangeEntry(last=last, files=[name])
            (self._folder / RANGES / NODE / entry_name(first)).write_bytes(msgspec.json.encode(entry))
        self._files += files


def costs(spark: SparkSession, place: str, folder: Path, read: Read, etag: bytes = b"") -> list[tuple[Cost, Cost]]:
    """Return the costs of a run, and of the first run of the next day, for each number of old files."""
    found = []
    for old in OLD:
        log, store = Log(folder / f"log-{old}", etag), CellStore(spark, f"{place}/state-{old}")

        def add_and_count(
            files: int, *, day: int = 0, log: Log = log, store: CellStore = store, old: int = old
        ) -> Cost:
            log.add(files)
            before, requests_before = read()
            begin = time.perf_counter()
            counted = store.count(f"{place}/log-{old}", map_tasks=4, at_ms=day * DAY_MS)
            took = time.perf_counter() - begin
            after, requests = read()
            assert counted == files
            return Cost(old, took, after - before, Counter(requests) - Counter(requests_before))

        add_and_count(old - NEW)
        add_and_count(NEW)  # warm up Java
        found.append((add_and_count(NEW), add_and_count(NEW, day=1)))
        shutil.rmtree(folder / f"log-{old}")
    return found


def of_processes(spark: SparkSession) -> Read:
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    def read() -> tuple[int, Mapping[str, int]]:
        texts = [Path(f"/proc/{pid}/io").read_text(encoding="ascii") for pid in ("self", java)]
        return sum(int(text.split()[1]) for text in texts), {}

    return read


def of_server(log: Path) -> Read:
    """Return a function that counts the requests in the access log, which has no bytes."""
    return lambda: (0, Counter(re.findall(r" s3_(\w+) ", log.read_text(encoding="utf-8"))))


def check(found: list[tuple[Cost, Cost]], what: str) -> None:
    sys.stdout.write(f"\n{what}")
    for usual, listing in found:
        sys.stdout.write(f"\n  {usual}\n  {'':>6} the first run of a day: {str(listing).partition(': ')[2]}")
    sys.stdout.write("\n")
    least = found[0][0]
    for usual, _ in found[1:]:
        assert usual.read_bytes <= BYTES_GROWTH_MAX * least.read_bytes
        assert sum(usual.requests.values()) <= sum(least.requests.values()) + MORE_REQUESTS_MAX
        assert usual.seconds <= SECONDS_GROWTH_MAX * least.seconds + 1.0


@pytest.mark.everything
@pytest.mark.timeout(3600)
def test_the_cost_of_a_run_depends_on_new_files_only(spark: SparkSession, tmp_path: Path) -> None:
    check(costs(spark, str(tmp_path), tmp_path, of_processes(spark)), "a folder:")


def on_bucket(
    variables: Mapping[str, str], settings: Mapping[str, str], url: str, folder: Path, access: Path
) -> list[tuple[Cost, Cost]]:
    os.environ.update(variables)
    with open_session("costs", Cluster(conf=tuple(f"{name}={value}" for name, value in settings.items()))) as spark:
        return costs(spark, url, folder, of_server(access), etag=b'"1"')


@pytest.mark.timeout(3600)
def test_the_cost_of_a_run_on_a_bucket_depends_on_new_files_only(s3: S3Server, tmp_path: Path) -> None:
    served, access = S3Server(tmp_path / "buckets"), tmp_path / "access.log"
    served.environment["VGW_ACCESS_LOG"] = str(access)
    with served:
        url, folder = served.bucket("event-log"), tmp_path / "buckets" / "event-log"
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
            variables = {**os.environ, **served.variables}
            found = pool.submit(on_bucket, variables, served.settings, url, folder, access).result()
    check(found, "a bucket:")
