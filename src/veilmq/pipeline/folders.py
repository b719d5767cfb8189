"""Folders and URLs that Spark reads and writes, wherever it runs."""

import re
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, DataFrameReader

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def is_url(place: str) -> bool:
    """Tell whether ``place`` is a URL, and no folder here."""
    return _URL.match(place) is not None


def located(place: str) -> str:
    """Return ``place``, a folder or a URL, as it means the same wherever Spark is, without a slash at its end.

    A relative folder is one of this process: a Spark Connect server works elsewhere.
    """
    return (place if is_url(place) else str(Path(place).absolute())).rstrip("/")


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
