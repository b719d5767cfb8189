"""Folders and URLs that Spark reads and writes, wherever it runs, and pyarrow beside it."""

import re
from pathlib import Path
from typing import Any

from pyarrow import ArrowException, fs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def is_url(place: str) -> bool:
    """Tell whether ``place`` is a URL, and no folder here."""
    return _URL.match(place) is not None


def located(place: str) -> str:
    """Return ``place``, a folder or a URL, as it means the same wherever Spark is, without a slash at its end.

    A relative folder is one of this process: a Spark Connect server works elsewhere. Spark's name of S3 is ``s3a``.
    """
    where = place if is_url(place) else str(Path(place).absolute())
    return re.sub("^s3:", "s3a:", where).rstrip("/")


def opened(place: str) -> tuple[Any, str] | None:
    """Return the file system of ``pyarrow.fs`` that ``place`` is in, and its path there; ``None`` if there is none."""
    try:
        filesystem, path = fs.FileSystem.from_uri(re.sub("^s3a:", "s3:", located(place)))
    except (ArrowException, OSError, ValueError):
        return None
    return filesystem, path


def existing(reader: DataFrameReader, place: str) -> DataFrame | None:
    """Return the Parquet files under ``place``; ``None`` where there is nothing."""
    try:
        found = reader.parquet(place)
        found.schema  # noqa: B018 - Spark Connect looks for the files only when it is asked something
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return found
