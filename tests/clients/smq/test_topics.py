"""Topics and subscriptions of SMQ with its official Python SDK."""

import base64
import json
import logging
import xml.etree.ElementTree as ET
from collections.abc import Callable
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from mns.account import Account
from mns.message_property import MessagePropertyValue
from mns.mns_common import TopicHelper
from mns.queue import Message, Queue, QueueMeta
from mns.subscription import Subscription, SubscriptionMeta
from mns.topic import Base64TopicMessage, DirectMailInfo, Topic, TopicMessage, TopicMeta

from tests.clients.smq.raw import element, message, smq_request
from tests.clients.smq.test_queues import refused
from tests.server.keys import OWNER as KEYS_OWNER
from tests.server.keys import REGION as KEYS_REGION
from tests.server.keys import SECRETS, written
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

SIZE = 65_536
REGION, OWNER = "us-east-1", "000000000000"
NAMESPACE = "{http://mns.aliyuncs.com/doc/v1}"


@pytest.fixture
def topic(account: Account) -> Topic:
    made = account.get_topic("news")
    made.create(TopicMeta())
    return made


@pytest.fixture
def plain(queue: Queue) -> Queue:
    queue.set_encoding(False)
    return queue


def endpoint(name: str = "jobs", account: str = OWNER) -> str:
    text: str = TopicHelper.generate_queue_endpoint(REGION, account, name)
    return text


def subscribe(topic: Topic, name: str = "s", at: str = "", **meta: str) -> Subscription:
    made = topic.get_subscription(name)
    made.subscribe(SubscriptionMeta(at or endpoint(), **meta))
    return made


def received(queue: Queue) -> Message:
    got = queue.receive_message()
    queue.delete_message(got.receipt_handle)
    return got


# Topics.


def test_a_new_topic_has_the_defaults_of_smq(account: Account, server: RunningServer) -> None:
    topic = account.get_topic("news")
    assert topic.create(TopicMeta()) == f"{server.endpoint}/topics/news"
    assert vars(topic.get_attributes()) == {
        "topic_name": "news",
        "maximum_message_size": SIZE,
        "message_retention_period": 86_400,
        "message_count": 0,
        "create_time": 1_700_000_000,
        "last_modify_time": 1_700_000_000,
        "logging_enabled": False,
    }


def test_creating_a_topic_again_requires_equal_attributes(account: Account, server: RunningServer) -> None:
    topic = account.get_topic("news")
    url = topic.create(TopicMeta(2_048, True))
    assert topic.create(TopicMeta()) == topic.create(TopicMeta(2_048)) == url
    assert smq_request(server, "PUT", "/topics/news").status == 204
    with refused("TopicAlreadyExist"):
        topic.create(TopicMeta(2_049))
    without_logs = element("Topic", element("LoggingEnabled", "false"))
    assert smq_request(server, "PUT", "/topics/news", without_logs).status == 409


def test_attributes_are_changed_one_by_one(topic: Topic, server: RunningServer) -> None:
    server.advance(seconds=5)
    topic.set_attributes(TopicMeta(1_024))
    topic.set_attributes(TopicMeta(logging_enabled=True))
    found = topic.get_attributes()
    assert (found.maximum_message_size, found.logging_enabled) == (1_024, True)
    assert (found.create_time, found.last_modify_time) == (1_700_000_000, 1_700_000_005)


def test_topics_are_listed_in_pages(account: Account, server: RunningServer) -> None:
    for name in ("b", "a2", "a1", "a3"):
        account.get_topic(name).create(TopicMeta())
    urls, marker = account.list_topic(prefix="a", ret_number=2)
    assert [url.rpartition("/")[2] for url in urls] == ["a1", "a2"]
    urls, marker = account.list_topic(prefix="a", ret_number=2, marker=marker)
    assert ([url.rpartition("/")[2] for url in urls], marker) == (["a3"], "")
    assert account.list_topic(prefix="c") == ([], "")
    detailed = smq_request(server, "GET", "/topics", "", "x-mns-with-meta: true", "x-mns-prefix: b")
    found = [detailed.text(name) for name in ("TopicName", "MessageCount", "TopicURL")]
    assert found == ["b", "0", "http://h:1/topics/b"]
    assert "TopicName" not in smq_request(server, "GET", "/topics").body


def test_a_topic_is_deleted_with_its_subscriptions(account: Account, topic: Topic, queue: Queue) -> None:
    subscribe(topic)
    topic.delete()
    topic.delete()
    for call in (
        topic.get_attributes,
        lambda: topic.set_attributes(TopicMeta(2_048)),
        lambda: topic.publish_message(TopicMessage("a")),
        topic.list_subscription,
        lambda: subscribe(topic),
        topic.get_subscription("s").unsubscribe,
        topic.get_subscription("s").get_attributes,
    ):
        with refused("TopicNotExist"):
            call()
    topic.create(TopicMeta())
    assert topic.list_subscription() == ([], "")


# Subscriptions.


def test_a_new_subscription_has_the_defaults_of_smq(topic: Topic, queue: Queue, server: RunningServer) -> None:
    made = topic.get_subscription("s")
    assert made.subscribe(SubscriptionMeta(endpoint())) == f"{server.endpoint}/topics/news/subscriptions/s"
    assert vars(made.get_attributes()) == {
        "topic_owner": OWNER,
        "topic_name": "news",
        "subscription_name": "s",
        "endpoint": "acs:mns:us-east-1:000000000000:queues/jobs",
        "filter_tag": "",
        "notify_strategy": "BACKOFF_RETRY",
        "notify_content_format": "XML",
        "create_time": 1_700_000_000,
        "last_modify_time": 1_700_000_000,
    }
    assert smq_request(server, "GET", "/topics/news/subscriptions/s").text("Subscriber") == OWNER


def test_creating_a_subscription_again_requires_equal_attributes(
    topic: Topic, queue: Queue, server: RunningServer
) -> None:
    meta = {"filter_tag": "red", "notify_content_format": "JSON", "notify_strategy": "EXPONENTIAL_DECAY_RETRY"}
    made = subscribe(topic, **meta)
    assert made.subscribe(SubscriptionMeta(endpoint(), **meta)) == f"{server.endpoint}/topics/news/subscriptions/s"
    found = made.get_attributes()
    assert {name: getattr(found, name) for name in meta} == meta
    with refused("SubscriptionAlreadyExist"):
        subscribe(topic)


def test_only_the_notify_strategy_can_be_changed(topic: Topic, queue: Queue, server: RunningServer) -> None:
    made = subscribe(topic)
    server.advance(seconds=5)
    made.set_attributes(SubscriptionMeta(notify_strategy="EXPONENTIAL_DECAY_RETRY"))
    made.set_attributes(SubscriptionMeta())
    found = made.get_attributes()
    assert (found.notify_strategy, found.last_modify_time) == ("EXPONENTIAL_DECAY_RETRY", 1_700_000_005)
    with refused("SubscriptionNotExist"):
        topic.get_subscription("none").set_attributes(SubscriptionMeta(notify_strategy="BACKOFF_RETRY"))


def test_subscriptions_are_listed_in_pages(topic: Topic, queue: Queue, server: RunningServer) -> None:
    """The SDKs for Go and Java request the attributes too, and read the same elements as of one subscription."""
    for name in ("b", "a2", "a1"):
        subscribe(topic, name)
    urls, marker = topic.list_subscription(ret_number=2)
    assert [url.rpartition("/")[2] for url in urls] == ["a1", "a2"]
    urls, marker = topic.list_subscription(ret_number=2, marker=marker)
    assert ([url.rpartition("/")[2] for url in urls], marker) == (["b"], "")
    assert len(topic.list_subscription(prefix="a")[0]) == 2
    path = "/topics/news/subscriptions"
    detailed = smq_request(server, "GET", path, "", "x-mns-with-meta: true", "x-mns-prefix: a1").body
    shown = smq_request(server, "GET", f"{path}/a1").body.partition('v1">\n')[2]
    assert f"<SubscriptionURL>http://h:1{path}/a1</SubscriptionURL>\n{shown}\n</Subscriptions>" in detailed
    assert "Endpoint" not in smq_request(server, "GET", path).body


def test_a_subscription_may_be_deleted_repeatedly(topic: Topic, queue: Queue) -> None:
    made = subscribe(topic)
    made.unsubscribe()
    made.unsubscribe()
    with refused("SubscriptionNotExist"):
        made.get_attributes()


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (endpoint("none"), "QueueNotExist"),
        (endpoint("a/b"), "InvalidQueueName"),
        ("http://hook.example/", "EndpointInvalid"),
        ("acs:mns:us-east-1:000000000000:topics/news", "EndpointInvalid"),
        (f"acs:mns:{'r' * 65}:000000000000:queues/jobs", "EndpointInvalid"),
        ("acs:mns:<a>\n:000000000000:queues/jobs", "EndpointInvalid"),
        ("ftp://hook.example/", "EndpointInvalid"),
    ],
)
def test_an_invalid_endpoint_is_refused(topic: Topic, queue: Queue, at: str, code: str) -> None:
    with refused(code):
        subscribe(topic, at=at)


# Publishing.


def as_xml(text: str) -> dict[str, str]:
    root = ET.fromstring(text)
    assert root.tag == f"{NAMESPACE}Notification"
    return {child.tag.removeprefix(NAMESPACE): child.text or "" for child in root}


@pytest.mark.parametrize(("name", "read"), [("XML", as_xml), ("JSON", json.loads)])
def test_a_queue_receives_a_notification_document(
    topic: Topic, plain: Queue, server: RunningServer, name: str, read: Callable[[str], Any]
) -> None:
    subscribe(topic, notify_content_format=name)
    body = "größer <als> & \"das\" ]]> \\ '\t'"
    published = topic.publish_message(TopicMessage(body, "a-tag"))
    digest = md5(body.encode()).hexdigest().upper()
    assert published.message_body_md5 == digest
    got = received(plain)
    assert got.message_id == published.message_id
    assert read(got.message_body) == {
        "TopicOwner": OWNER,
        "TopicName": "news",
        "Subscriber": OWNER,
        "SubscriptionName": "s",
        "MessageId": published.message_id,
        "Message": body,
        "MessageMD5": digest,
        "MessageTag": "a-tag",
        "PublishTime": str(server.clock.now_ms()),
    }


def test_a_queue_receives_only_the_body_in_simplified_format(topic: Topic, plain: Queue) -> None:
    subscribe(topic, notify_content_format="SIMPLIFIED")
    topic.publish_message(TopicMessage("just this"))
    assert received(plain).message_body == "just this"


def test_bodies_in_base64_are_not_decoded(topic: Topic, queue: Queue) -> None:
    subscribe(topic, notify_content_format="SIMPLIFIED")
    sent = topic.publish_message(Base64TopicMessage("köln"))
    assert sent.message_body_md5 == md5(base64.b64encode("köln".encode())).hexdigest().upper()
    assert queue.receive_message_with_str_body().message_body == "köln"


def test_a_filter_tag_must_equal_the_tag(account: Account, topic: Topic, plain: Queue) -> None:
    subscribe(topic, "red", filter_tag="red", notify_content_format="SIMPLIFIED")
    for tag in ("red", "blue", "", "RED", "re"):
        topic.publish_message(TopicMessage(f"<{tag}>", tag))
    assert received(plain).message_body == "<red>"
    with refused("MessageNotExist"):
        plain.receive_message()


def test_properties_and_groups_are_delivered(account: Account, topic: Topic) -> None:
    fifo = account.get_queue("jobs.fifo")
    fifo.create(QueueMeta())
    fifo.set_encoding(False)
    subscribe(topic, at=endpoint("jobs.fifo"), notify_content_format="SIMPLIFIED")
    for body, group in (("1", "g"), ("lost", ""), ("2", "g"), ("2", "g")):
        message = TopicMessage(body, message_group_id=group)
        message.add_user_property("kind", MessagePropertyValue.create_string("x"))
        topic.publish_message(message)
    got = [received(fifo) for _ in range(3)]
    assert [each.message_body for each in got] == ["1", "2", "2"]
    assert got[0].get_user_properties()["kind"].get_string_value_by_type() == "x"


def test_mail_attributes_are_ignored(topic: Topic, plain: Queue) -> None:
    subscribe(topic, notify_content_format="SIMPLIFIED")
    mail = DirectMailInfo("account", "subject", 0, 0, 0)
    topic.publish_message(TopicMessage("a", direct_mail=mail))
    assert received(plain).message_body == "a"


def test_the_maximum_message_size_excludes_the_notification_document(topic: Topic, plain: Queue) -> None:
    subscribe(topic)
    topic.publish_message(TopicMessage("&" * SIZE))
    assert as_xml(received(plain).message_body)["Message"] == "&" * SIZE
    plain.set_attributes(QueueMeta(max_msg_size=1_024))
    topic.publish_message(TopicMessage("x" * 1_025))
    with refused("MessageNotExist"):
        plain.receive_message()
    topic.set_attributes(TopicMeta(1_024))
    described = TopicMessage("x" * 1_020)
    described.add_user_property("kind", MessagePropertyValue.create_string("x"))
    for too_long in (TopicMessage("x" * 1_025), TopicMessage("é" * 513), described):
        with refused("InvalidArgument"):
            topic.publish_message(too_long)


def test_published_messages_are_received_over_sqs(topic: Topic, queue: Queue, server: RunningServer) -> None:
    subscribe(topic, notify_content_format="SIMPLIFIED")
    published = topic.publish_message(TopicMessage("hello"))
    with HttpQueueClient(server.endpoint) as sqs:
        (got,) = sqs.receive("jobs")
    assert (got.body, got.id.replace("-", "").upper()) == ("hello", published.message_id)


def test_topics_belong_to_the_account_that_signs(tmp_path: Path) -> None:
    """Other accounts can have topics of the same name, and cannot subscribe its queues."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=KEYS_REGION) as server:
        first, second = (
            Account(server.endpoint, key, SECRETS[key], logger=logging.getLogger("mns"))
            for key in ("AKIDOWNER", "AKIDFRIEND")
        )
        for account in (first, second):
            account.get_topic("news").create(TopicMeta())
            account.get_queue("jobs").create(QueueMeta())
        subscribe(first.get_topic("news"), at=endpoint(account=KEYS_OWNER), notify_content_format="SIMPLIFIED")
        with refused("AccessDenied"):
            subscribe(second.get_topic("news"), at=endpoint(account=KEYS_OWNER))
        second.get_topic("news").publish_message(TopicMessage("not yours"))
        first.get_topic("news").publish_message(TopicMessage("yours"))
        plain = first.get_queue("jobs")
        plain.set_encoding(False)
        assert received(plain).message_body == "yours"
        with refused("MessageNotExist"):
            plain.receive_message()
        assert first.get_topic("news").get_subscription("s").get_attributes().topic_owner == KEYS_OWNER
        for account in (first, second):
            account.mns_client.close_connection()


# Invalid requests.


def subscription(**more: str) -> str:
    return element("Subscription", "".join(element(*each) for each in {"Endpoint": endpoint(), **more}.items()))


def sized(size: int) -> str:
    return element("Topic", element("MaximumMessageSize", size))


SUBSCRIBED = "/topics/news/subscriptions"
WRONG = [
    ("PUT", "/topics/-a", "", "TopicNameInvalid"),
    ("PUT", "/topics/a_b", "", "TopicNameInvalid"),
    ("PUT", "/topics/a.fifo", "", "TopicNameInvalid"),
    ("PUT", f"/topics/{'x' * 256}", "", "TopicNameLengthError"),
    ("PUT", "/topics/news?metaoverride=true", sized(1_023), "InvalidArgument"),
    ("PUT", "/topics/news?metaoverride=true", sized(SIZE + 1), "InvalidArgument"),
    ("PUT", f"{SUBSCRIBED}/-a", "", "SubscriptionNameInvalid"),
    ("PUT", f"{SUBSCRIBED}/{'x' * 256}", "", "SubscriptionNameLengthError"),
    ("PUT", f"{SUBSCRIBED}/s", "", "MalformedXML"),
    ("PUT", f"{SUBSCRIBED}/s", "<Subscription></Subscription>", "EndpointInvalid"),
    ("PUT", f"{SUBSCRIBED}/s", subscription(NotifyStrategy="NEVER"), "InvalidArgument"),
    ("PUT", f"{SUBSCRIBED}/s", subscription(NotifyContentFormat="YAML"), "InvalidArgument"),
    ("PUT", f"{SUBSCRIBED}/s", subscription(FilterTag="seventeen letters"), "InvalidArgument"),
    ("POST", "/topics/news/messages", "", "MalformedXML"),
    ("POST", "/topics/news/messages", "<Message></Message>", "InvalidArgument"),
    ("POST", "/topics/news/messages", message(""), "InvalidArgument"),
    ("POST", "/topics/news/messages", message("a", MessageTag="seventeen letters"), "InvalidArgument"),
    ("POST", "/topics/news/messages", message("a", MessageTag="a\nb"), "InvalidArgument"),
]


@pytest.mark.usefixtures("topic", "queue")
def test_an_invalid_request_about_topics_has_an_error_code(server: RunningServer) -> None:
    codes = [smq_request(server, method, path, body).code for method, path, body, _ in WRONG]
    assert codes == [code for *_, code in WRONG]
    assert smq_request(server, "PUT", f"/topics/9{'x' * 254}").status == 201
