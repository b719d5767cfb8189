"""Where exported files go: a folder of this machine, or whatever pyarrow or fsspec has a name for.

A file appears at once or not at all. In a bucket that is what an upload does. Elsewhere the file is written under a
name that readers of tables pass over, and renamed. On a local disk both are synced before ``put`` returns, since the
store forgets the events afterwards. The same file put again replaces the one that is there.
"""

import os
from pathlib import Path
from secrets import token_hex
from typing import Any

from pyarrow import ArrowException, fs

from veilmq.events.failures import EventsError

_BUCKETS = ("s3", "gcs", "abfs")  # file systems without folders and renames, whose files appear when they are closed
_PASSED_OVER = "_"  # the first letter of names that Spark and pyarrow do not read


class Target:
    """One place: ``filesystem`` is one of ``pyarrow.fs``, ``root`` a path in it."""

    def __init__(self, filesystem: Any, root: str, *, local: bool) -> None:
        """Use ``open_target``."""
        self._filesystem = filesystem
        self._own = token_hex(4)  # nobody else writes under that name, whoever exports the same range meanwhile
        self.root = root.rstrip("/")
        self._local = local

    def put(self, folder: str, name: str, content: Any) -> None:
        """Write ``content`` (bytes or a buffer) as the file ``name`` in ``folder``, a path below the root."""
        where = f"{self.root}/{folder}"
        temporary, path = f"{where}/{_PASSED_OVER}{name}.{self._own}.tmp", f"{where}/{name}"
        if self._filesystem.type_name in _BUCKETS:
            self.write(path, content)
            return
        self._filesystem.create_dir(where, recursive=True)
        self.write(temporary, content)
        self.rename(temporary, path)
        if self._local:
            for left in Path(where).glob(f"{_PASSED_OVER}{name}.*.tmp"):  # by writers that were killed
                left.unlink(missing_ok=True)
            self._sync_folders(where)

    def write(self, path: str, content: Any) -> None:
        """Write ``content`` whole, and see that it is on the disk where there is one."""
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(content)
        if self._local:
            _sync(path)

    def rename(self, temporary: str, path: str) -> None:
        """Give a written file its name; where files are not replaced (HDFS, SFTP), the one of that name goes before."""
        try:
            self._filesystem.move(temporary, path)
        except OSError:
            if not self._filesystem.get_file_info(path).is_file:
                raise
            self._filesystem.delete_file(path)
            self._filesystem.move(temporary, path)

    def _sync_folders(self, folder: str) -> None:
        """Sync the folder of a new file, and those above it, which may be new too, up to the root's own."""
        above = Path(self.root).parent
        for each in (Path(folder), *Path(folder).parents):
            _sync(str(each))
            if each == above:
                return


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_target(place: str) -> Target:
    """Return the target that ``place`` names: a folder, made if need be, or a URL. Raises ``EventsError``."""
    if "://" not in place or place.startswith("file://"):
        return _local(place.removeprefix("file://"), fs.LocalFileSystem())
    return _remote(place)


def _local(place: str, filesystem: Any) -> Target:
    folder = Path(place).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EventsError(f"The folder {folder} for events (--events-to) cannot be made: {error.strerror}.") from error
    if not os.access(folder, os.W_OK):
        raise EventsError(f"The folder {folder} for events (--events-to) cannot be written; change its rights.")
    return Target(filesystem, str(folder), local=True)


def _remote(url: str) -> Target:
    whole = f"{url}{'&' if '?' in url else '?'}allow_delayed_open=true" if url.startswith("s3:") else url
    try:
        return Target(*fs.FileSystem.from_uri(whole), local=False)  # so small a file goes to S3 in one request
    except (ArrowException, OSError, ValueError) as refused:
        handler, root = _of_fsspec(url, refused)
        return Target(fs.PyFileSystem(handler), root, local=False)


def _of_fsspec(url: str, refused: Exception) -> tuple[Any, str]:
    """Return what fsspec makes of a URL that pyarrow does not know."""
    place = f"{_shown(url)} (--events-to)"
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 (only some targets need it)
    except ModuleNotFoundError:
        raise EventsError(
            f"{place} is no URL of pyarrow ({_hidden(url, refused)}), and fsspec is missing: pip install fsspec"
        ) from None
    try:
        filesystem, root = url_to_fs(url)
    except Exception as error:  # noqa: BLE001 (each of its file systems has errors of its own)
        reasons = f"fsspec: {_hidden(url, error)}; pyarrow: {_hidden(url, refused)}"
        raise EventsError(f"{place} cannot be used. {reasons}") from None
    return fs.FSSpecHandler(filesystem), root


def _shown(url: str) -> str:
    """Return ``url`` without what may be secret: a user's name and password, and the parameters."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def _hidden(url: str, error: Exception) -> str:
    """Return what ``error`` says, without the secrets of ``url``."""
    text = str(error).replace(url, _shown(url))
    user = url.partition("://")[2].rpartition("@")[0]
    for secret in (user, user.partition(":")[2]):
        text = text.replace(secret, "…") if secret else text
    return text
