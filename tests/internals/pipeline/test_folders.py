"""Folders and URLs as Spark takes them."""

from pathlib import Path

import pytest

from veilmq.pipeline.folders import located


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        pytest.param("state", "{here}/state", id="relative"),
        pytest.param("./a/state/", "{here}/a/state", id="dot"),
        pytest.param("/mnt/state/", "/mnt/state", id="absolute"),
        pytest.param("s3a://bucket/state/", "s3a://bucket/state", id="url"),
        pytest.param("file:/mnt/state", "file:/mnt/state", id="file"),
    ],
)
def test_a_relative_folder_is_one_of_this_process(
    place: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a URL stays what it is."""
    monkeypatch.chdir(tmp_path)
    assert located(place) == wanted.format(here=tmp_path)
