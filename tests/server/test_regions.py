"""Accounts and regions of requests, with real clients, with and without a credentials file."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from botocore.exceptions import ClientError
from pyarrow import dataset

from tests.clients.smq.raw import smq_request
from tests.server.keys import FRIEND, OWNER, REGION, client, signed, written
from tests.server.service_client import PROTOCOLS, ServiceClient
from veilmq.client.api import Settings
from veilmq.testing import RunningServer

HOME, OTHER = "us-east-1", "eu-west-1"
ACCOUNT = "000000000000"
GUEST = "123456789012"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
STORES = pytest.mark.parametrize("store", ["memory", "postgres"])


def sqs(server: RunningServer, region: str = HOME, key: str = "test") -> Any:
    return client(server, key, region_name=region)


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer(regions="by-request") as running:
        yield running


def attributes(queues: Any, url: str) -> dict[str, str]:
    found: dict[str, str] = queues.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found


def bodies(queues: Any, url: str) -> list[str]:
    return [each["Body"] for each in queues.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])]


@STORES
def test_each_region_has_its_own_queues(store: str, store_settings: Callable[[str], dict[str, Any]]) -> None:
    with RunningServer(regions="by-request", **store_settings(store)) as server:
        here, there = sqs(server), sqs(server, OTHER)
        urls = [queues.create_queue(QueueName="orders")["QueueUrl"] for queues in (here, there)]
        paths = [url.removeprefix(server.endpoint) for url in urls]
        assert paths == [f"/{ACCOUNT}/orders", f"/{OTHER}/{ACCOUNT}/orders"]
        for queues, url, region in zip((here, there), urls, (HOME, OTHER), strict=True):
            assert attributes(queues, url)["QueueArn"] == f"arn:aws:sqs:{region}:{ACCOUNT}:orders"
            assert queues.list_queues()["QueueUrls"] == [url]
            assert queues.get_queue_url(QueueName="orders")["QueueUrl"] == url
            assert queues.get_queue_url(QueueName="orders", QueueOwnerAWSAccountId=ACCOUNT)["QueueUrl"] == url
            queues.send_message(QueueUrl=url, MessageBody=region)
        assert [bodies(here, urls[0]), bodies(there, urls[1])] == [[HOME], [OTHER]]
        there.delete_queue(QueueUrl=urls[1])
        assert here.list_queues()["QueueUrls"] == [urls[0]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_scope_of_a_signature_selects_the_region(server: RunningServer, protocol: str) -> None:
    """Its queues have URLs and ARNs of that region, and are listed only there."""
    with ServiceClient(server.endpoint, protocol) as there, ServiceClient(server.endpoint, protocol) as here:
        scope = f"test/20260101/{OTHER}/sqs/aws4_request"
        there.headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=b"
        url = there.queue()
        name = url.rpartition("/")[2]
        assert url == f"{server.endpoint}/{OTHER}/{ACCOUNT}/{name}"
        assert here.attributes(url)["QueueArn"] == f"arn:aws:sqs:{OTHER}:{ACCOUNT}:{name}"
        assert there.call("ListQueues")["QueueUrls"] == [url]
        assert "QueueUrls" not in here.call("ListQueues")
        assert here.request("GetQueueUrl", QueueName=name).code == "AWS.SimpleQueueService.NonExistentQueue"


def test_the_region_of_a_queue_url_overrides_that_of_the_signature(server: RunningServer) -> None:
    here, there = sqs(server), sqs(server, OTHER)
    home, other = (queues.create_queue(QueueName="orders")["QueueUrl"] for queues in (here, there))
    here.send_message(QueueUrl=other, MessageBody="crossed")
    assert bodies(there, other) == ["crossed"]
    there.send_message(QueueUrl=home, MessageBody="back")
    assert bodies(here, f"{server.endpoint}/{HOME}/{ACCOUNT}/orders") == ["back"]


@STORES
def test_dead_letters_and_moves_stay_in_their_region(
    store: str, store_settings: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    """ARNs of another region are refused; the event log has the region of each queue."""
    with RunningServer(regions="by-request", events_to=str(tmp_path / "events"), **store_settings(store)) as server:
        _dead_letters_and_moves(server)
        assert urllib3.request("POST", f"{server.admin_endpoint}/events/flush").status == 200
    rows = dataset.dataset(tmp_path / "events", partitioning="hive").to_table().to_pylist()
    assert {row["queue"] for row in rows} == {f"{ACCOUNT}@{OTHER}/orders", f"{ACCOUNT}@{OTHER}/dead"}


def _dead_letters_and_moves(server: RunningServer) -> None:
    here, there = sqs(server), sqs(server, OTHER)
    dead = {queues: queues.create_queue(QueueName="dead")["QueueUrl"] for queues in (here, there)}
    arns = {queues: attributes(queues, url)["QueueArn"] for queues, url in dead.items()}
    policy = json.dumps({"deadLetterTargetArn": arns[there], "maxReceiveCount": 1})
    url = there.create_queue(QueueName="orders", Attributes={"RedrivePolicy": policy})["QueueUrl"]
    assert json.loads(attributes(there, url)["RedrivePolicy"])["deadLetterTargetArn"] == arns[there]
    assert there.list_dead_letter_source_queues(QueueUrl=dead[there])["queueUrls"] == [url]
    with pytest.raises(ClientError, match="same as the source"):
        here.create_queue(QueueName="orders", Attributes={"RedrivePolicy": policy})
    there.send_message(QueueUrl=url, MessageBody="poison")
    there.receive_message(QueueUrl=url, VisibilityTimeout=0)
    assert bodies(there, url) == []
    received = there.receive_message(QueueUrl=dead[there], MessageSystemAttributeNames=["All"], VisibilityTimeout=0)
    (letter,) = (each["Attributes"] for each in received["Messages"])
    assert letter["DeadLetterQueueSourceArn"] == f"arn:aws:sqs:{OTHER}:{ACCOUNT}:orders"
    assert letter["SenderId"] == ACCOUNT
    with pytest.raises(ClientError, match="ResourceNotFound"):
        here.start_message_move_task(SourceArn=arns[there])
    there.start_message_move_task(SourceArn=arns[there])
    server.advance(seconds=2)
    (task,) = there.list_message_move_tasks(SourceArn=arns[there])["Results"]
    assert (task["SourceArn"], task["ApproximateNumberOfMessagesMoved"]) == (arns[there], 1)
    assert bodies(there, url) == ["poison"]


def create_orders(server: RunningServer, headers: dict[str, str]) -> str:
    """Create the queue ``orders`` with an unsigned request; return the reply."""
    form = {"Action": "CreateQueue", "QueueName": "orders"}
    return urllib3.request("POST", server.endpoint, body=urlencode(form), headers=FORM | headers).data.decode()


@pytest.mark.parametrize("host", [f"sqs.{OTHER}.localhost:9324", f"{OTHER}.queue.localhost"])
def test_the_host_selects_the_region_of_unsigned_requests(server: RunningServer, host: str) -> None:
    assert f"http://{host}/{OTHER}/{ACCOUNT}/orders" in create_orders(server, {"Host": host})
    assert sqs(server, OTHER).list_queues()["QueueUrls"] == [f"{server.endpoint}/{OTHER}/{ACCOUNT}/orders"]
    assert "QueueUrls" not in sqs(server).list_queues()


def test_the_host_selects_no_region_for_smq(server: RunningServer) -> None:
    host = f"sqs.{OTHER}.localhost"
    assert smq_request(server, "PUT", "/queues/orders", host=host).status == 201
    assert sqs(server).list_queues()["QueueUrls"] == [f"{server.endpoint}/{ACCOUNT}/orders"]


def test_an_invalid_region_stands_for_the_servers_region(server: RunningServer) -> None:
    headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/Not A Region/sqs/aws4_request, Signature=b"}
    assert f"{server.endpoint}/{ACCOUNT}/orders" in create_orders(server, headers)


def test_paths_of_the_v1_api_and_the_console_have_the_region(server: RunningServer) -> None:
    """The server's region may be omitted; clients take the region from the URL of a queue."""
    there = sqs(server, OTHER)
    url = there.create_queue(QueueName="orders")["QueueUrl"]
    assert Settings(server.endpoint, url).show().queue == "orders"
    listed = urllib3.request("GET", f"{server.endpoint}/v1/queues/{ACCOUNT}@{OTHER}").json()
    assert [each["name"] for each in listed["queues"]] == ["orders"]
    for account in (ACCOUNT, f"{ACCOUNT}@{HOME}", "-"):
        assert urllib3.request("GET", f"{server.endpoint}/v1/queues/{account}").json()["queues"] == []
    page = urllib3.request("GET", f"{server.admin_endpoint}/console/queues/{ACCOUNT}@{OTHER}/orders")
    assert (page.status, f"arn:aws:sqs:{OTHER}:{ACCOUNT}:orders" in page.data.decode()) == (200, True)
    metrics = urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode()
    assert f'queue="{ACCOUNT}@{OTHER}/orders"' in metrics


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with a credentials file."""
    keys = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=keys, account=OWNER, region=REGION, regions="by-request") as running:
        yield running


def test_signatures_of_every_region_are_verified(guarded: RunningServer) -> None:
    """Policies compare accounts, not regions."""
    owner, friend = (client(guarded, key, region_name=HOME) for key in ("AKIDOWNER", "AKIDFRIEND"))
    url = owner.create_queue(QueueName="orders")["QueueUrl"]
    assert url == f"{guarded.endpoint}/{HOME}/{OWNER}/orders"
    owner.send_message(QueueUrl=url, MessageBody="a")
    with pytest.raises(ClientError, match="AccessDenied"):
        friend.send_message(QueueUrl=url, MessageBody="b")
    owner.add_permission(QueueUrl=url, Label="friend", AWSAccountIds=[FRIEND], Actions=["SendMessage"])
    guarded.advance(seconds=10)
    friend.send_message(QueueUrl=url, MessageBody="c")
    assert sorted(bodies(owner, url)) == ["a", "c"]
    assert "QueueUrls" not in client(guarded).list_queues()  # of the server's own region
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client(guarded, region_name=HOME, aws_secret_access_key="wrong").list_queues()


@pytest.mark.parametrize(("named", "denied"), [(HOME, False), (REGION, True)])
def test_a_policy_may_require_the_region_of_the_queue(guarded: RunningServer, named: str, denied: bool) -> None:
    sends = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    condition = {"StringEquals": {"aws:RequestedRegion": named}}
    policy = {"Version": "2012-10-17", "Statement": {**sends, "Condition": condition}}
    owner, friend = (client(guarded, key, region_name=HOME) for key in ("AKIDOWNER", "AKIDFRIEND"))
    url = owner.create_queue(QueueName="orders", Attributes={"Policy": json.dumps(policy)})["QueueUrl"]
    with pytest.raises(ClientError, match="AccessDenied") if denied else nullcontext():
        friend.send_message(QueueUrl=url, MessageBody="m")


def test_only_the_owner_lists_the_queues_of_another_region(guarded: RunningServer) -> None:
    client(guarded, region_name=HOME).create_queue(QueueName="orders")
    for key, seen in (("AKIDOWNER", ["orders"]), ("AKIDFRIEND", [])):
        request = signed(f"{guarded.endpoint}/v1/queues/{OWNER}@{HOME}", key, region=HOME)
        reply = urllib3.request("GET", request.url, headers=dict(request.headers)).json()
        assert [each["name"] for each in reply.get("queues", ())] == seen


def test_the_default_is_one_region() -> None:
    """Clients of every region see the same queues, with ARNs of the server's region."""
    with RunningServer() as server:
        url = sqs(server, OTHER).create_queue(QueueName="orders")["QueueUrl"]
        assert url == f"{server.endpoint}/{ACCOUNT}/orders"
        assert attributes(sqs(server, "ap-south-1"), url)["QueueArn"] == f"arn:aws:sqs:{HOME}:{ACCOUNT}:orders"
        refused = urllib3.request("GET", f"{server.endpoint}/v1/queues/{ACCOUNT}@{OTHER}")
        assert (refused.status, "by-request" in refused.data.decode()) == (400, True)


@pytest.mark.parametrize("regions", ["one", "by-request"])
def test_a_key_of_twelve_digits_selects_the_account(regions: str) -> None:
    """Every other key belongs to the server's account."""
    with RunningServer(regions=regions) as server:
        guest = sqs(server, key=GUEST)
        url = guest.create_queue(QueueName="orders")["QueueUrl"]
        assert url == f"{server.endpoint}/{GUEST}/orders"
        assert attributes(guest, url)["QueueArn"] == f"arn:aws:sqs:{HOME}:{GUEST}:orders"
        shared = sqs(server).create_queue(QueueName="shared")["QueueUrl"]
        for key in ("test", GUEST):
            sqs(server, key=key).send_message(QueueUrl=shared, MessageBody=key)
        received = sqs(server).receive_message(QueueUrl=shared, MaxNumberOfMessages=2, AttributeNames=["SenderId"])
        senders = {each["Body"]: each["Attributes"]["SenderId"] for each in received["Messages"]}
        assert senders == {"test": ACCOUNT, GUEST: GUEST}
        sqs(server).delete_queue(QueueUrl=shared)
        for key in ("test", "AKIAIOSFODNN7EXAMPLE", "1234567890123", "12345678901"):
            assert "QueueUrls" not in sqs(server, key=key).list_queues()
        request = signed(f"{server.endpoint}/?Action=ListQueues", GUEST, region=HOME, presigned_s=3_600)
        assert url in urllib3.request("GET", request.prepare().url).data.decode()


def test_a_key_of_twelve_digits_selects_no_account_with_a_credentials_file(guarded: RunningServer) -> None:
    with pytest.raises(ClientError, match="InvalidClientTokenId"):
        client(guarded, GUEST).list_queues()


def test_thousands_of_unknown_accounts_and_regions_do_not_break_known_ones(server: RunningServer) -> None:
    url = sqs(server, OTHER).create_queue(QueueName="orders")["QueueUrl"]
    pool = urllib3.PoolManager()
    for number in range(2_500):
        credential = f"{number:012}/20260101/r-{number}/sqs/aws4_request"
        headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, Signature=b"}
        assert pool.request("GET", f"{server.endpoint}/?Action=ListQueues", headers=headers).status == 200
    assert sqs(server, OTHER).list_queues()["QueueUrls"] == [url]
