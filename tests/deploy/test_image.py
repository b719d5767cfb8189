"""The image: its size, what is in it, and a message through it, with a read-only root and without privileges.

`make prove-image` says at its end which ways of running it this machine has: as a container, and unpacked in a
namespace.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EVERYTHING, need
from tests.deploy.image import DATA, HOW, USER, Containers, Image, Namespaces, is_possible
from tests.server.keys import SECRETS, written

pytestmark = [EVERYTHING, pytest.mark.timeout(1_800), pytest.mark.xdist_group("image")]

COMPRESSED_BYTES_MAX = 150_000_000
KEYS = "/srv/keys.toml"
CLIENT = """
import boto3
sqs = boto3.client("sqs", endpoint_url="http://127.0.0.1:9324", region_name="us-east-1")
url = sqs.create_queue(QueueName="orders")["QueueUrl"]
"""
SEND = CLIENT + 'sqs.send_message(QueueUrl=url, MessageBody="hello")'
RECEIVE = (
    CLIENT
    + """
for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]:
    print(message["Body"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
"""
)
ANY = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
COMPILERS = ("cc", "gcc", "c++", "ld", "as", "make", "rustc", "/opt/veilmq/bin/pip")

Way = Containers | Namespaces


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    need(is_possible(), HOW)
    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module", params=["container", "namespace"])
def way(image: Image, request: pytest.FixtureRequest) -> Iterator[Way]:
    if request.param == "namespace":
        yield Namespaces(image)
        return
    containers = Containers(image)
    with containers.opened() as problem:
        if problem:
            pytest.skip(f"this machine lets no container start: {problem}")
        yield containers


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.chown(folder, USER, USER)
    return folder


def test_it_is_small(image: Image) -> None:
    size = image.compressed_bytes()
    sys.stdout.write(f"compressed: {size / 1e6:.0f} MB\n")
    assert size <= COMPRESSED_BYTES_MAX


def test_it_starts_as_a_user_that_is_not_root_and_keeps_data_in_a_volume(image: Image) -> None:
    assert image.config["User"] == f"{USER}:{USER}"
    assert set(image.config["Volumes"]) == {DATA}
    assert set(image.config["ExposedPorts"]) == {"9324/tcp", "9325/tcp", "9326/tcp"}
    assert (image.config["Entrypoint"], image.config["Cmd"]) == (["veilmq"], ["serve"])


def test_a_message_goes_through_it_and_outlives_it(way: Way, data: Path) -> None:
    """Without any option; its root is read-only, and it has no privilege."""
    with way.running(data, {}, {}) as inside:
        inside.client(SEND, **ANY)
        assert set(inside.status("Uid").split()) == {str(USER)}
        assert set(inside.status("CapEff")) == {"0"}
        assert inside.status("NoNewPrivs") == "1"
        assert "ro" in inside.root_options()
        for place in ("/", "/srv", "/tmp", "/opt/veilmq"):
            refused = inside.call("touch", f"{place}/written")
            assert "Read-only file system" in refused.stderr, place
        assert inside.call("veilmq", "queue", "list").stdout.split() == ["orders"]
        found = [inside.call("sh", "-c", f"command -v {program}").stdout for program in COMPILERS]
        assert found == [""] * len(COMPILERS)
    with way.running(data, {}, {}) as inside:
        assert inside.client(RECEIVE, **ANY) == "hello\n"


def test_with_credentials_requests_must_be_signed(way: Way, data: Path, tmp_path: Path) -> None:
    """The file is root's, for the group of the server: a secret as it is mounted."""
    keys = written(tmp_path / "keys.toml")
    shutil.chown(keys, 0, USER)
    keys.chmod(0o440)
    with way.running(data, {"VEILMQ_CREDENTIALS": KEYS}, {keys: KEYS}) as inside:
        with pytest.raises(AssertionError, match="InvalidClientTokenId"):
            inside.client(SEND, **ANY)
        signed = {"AWS_ACCESS_KEY_ID": "AKIDOWNER", "AWS_SECRET_ACCESS_KEY": SECRETS["AKIDOWNER"]}
        inside.client(SEND, **signed)
        assert inside.client(RECEIVE, **signed) == "hello\n"


def test_extras_work(way: Way, data: Path, tmp_path: Path) -> None:
    """What was cut out of pyarrow is not needed for Parquet and buckets; ElasticMQ's file is read; asyncpg is there."""
    queues = tmp_path / "queues.conf"
    queues.write_text("queues { invoices { delay = 5 seconds } }", encoding="utf-8")
    settings = {"VEILMQ_EVENTS_TO": DATA + "/events", "VEILMQ_QUEUES_FILE": "/srv/queues.conf"}
    with way.running(data, settings, {queues: "/srv/queues.conf"}) as inside:
        assert inside.call("veilmq", "queue", "list").stdout.split() == ["invoices"]
        inside.client(SEND + RECEIVE.removeprefix(CLIENT), **ANY)
        modules = "pyarrow.parquet, pyarrow.fs, pyarrow.compute, pyarrow.dataset, asyncpg, cryptography.x509"
        assert inside.call("python3", "-c", f"import {modules}; pyarrow.fs.S3FileSystem").stderr == ""
        flushed = inside.client(
            "import urllib.request as http; print(http.urlopen('http://127.0.0.1:9325/events/flush', b'').status)"
        )
        assert flushed == "200\n"
    assert list(data.rglob("*.parquet"))
