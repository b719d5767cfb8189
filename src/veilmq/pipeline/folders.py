"""Folders and URLs that Spark reads and writes, wherever it runs, and files in them that the jobs write themselves.

A place is a folder or a URL (``s3://bucket/folder``), of any kind that Spark, ``pyarrow.fs`` and deltalake reach; the
three find the keys to a bucket where programs for it look: in the environment (``AWS_ACCESS_KEY_ID`` …), or in the
machine's role.
"""

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import ArrowException, fs
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


def opened(place: str) -> tuple[fs.FileSystem, str] | None:
    """Return the file system of ``pyarrow.fs`` that ``place`` is in, and its path there; ``None`` if there is none."""
    try:
        return _opened(located(place))
    except (ArrowException, OSError, ValueError):
        return None


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


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or the prefix of a bucket, with files in it; ``location`` is what Spark and deltalake take."""

    location: str

    @classmethod
    def at(cls, place: str | Path) -> "Place":
        """Return the place of a folder or URL."""
        return cls(located(str(place)))

    def __truediv__(self, name: str) -> "Place":
        """Return the folder ``name`` in this one."""
        return Place(f"{self.location}/{name}")

    @property
    def files(self) -> fs.FileSystem:
        """Return what opens the files, by their paths in this place."""
        whole, path = _opened(self.location)
        return fs.SubTreeFileSystem(path, whole)

    @property
    def has_folders(self) -> bool:
        """Return whether folders are to be made, and files can be renamed; buckets have only keys."""
        return _opened(self.location)[0].type_name in {"local", "hdfs"}

    def prepare(self, path: str) -> None:
        """Make the folder of the file at ``path``, where there are folders."""
        if self.has_folders:
            self.files.create_dir(str(Path(path).parent), recursive=True)

    def names(self) -> list[str]:
        """Return the names of what is here; none where there is nothing."""
        return [found.base_name for found in self.files.get_file_info(fs.FileSelector("", allow_not_found=True))]

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; ``None`` where there is none."""
        if self.files.get_file_info(path).type is not fs.FileType.File:
            return None
        with self.files.open_input_file(path) as file:
            content: bytes = file.read()
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write a file, whole or not at all, in the place of one that is there."""
        self.prepare(path)
        fresh = f"{path}.new" if self.has_folders else path  # an object appears when it is whole
        with self.files.open_output_stream(fresh) as file:
            file.write(content)
        if fresh != path:
            self.files.move(fresh, path)

    def sync(self, *paths: str) -> None:
        """Have files and folders on the disk, where it is one of this machine; others acknowledge what is durable."""
        whole, root = _opened(self.location)
        for path in paths if isinstance(whole, fs.LocalFileSystem) else ():
            handle = os.open(Path(root) / path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


@lru_cache(maxsize=64)
def _opened(location: str) -> tuple[fs.FileSystem, str]:
    scheme = urlsplit(location).scheme if is_url(location) else ""
    if scheme in {"", "file"}:
        return fs.LocalFileSystem(), urlsplit(location).path if scheme else location
    filesystem, path = fs.FileSystem.from_uri(re.sub("^s3a:", "s3:", location))  # Hadoop's name of S3
    return filesystem, path
