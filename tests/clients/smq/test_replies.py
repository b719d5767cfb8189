"""Replies of SMQ byte for byte: SDKs compare headers case-sensitively and find elements by position."""

import re

import pytest

from tests.clients.smq.raw import element, lines, message, smq_request
from veilmq.core.limits import HTTP_BODY_BYTES_MAX, HTTP_TARGET_BYTES_MAX
from veilmq.testing import RunningServer

DATE = rb"Date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n"
ID = rb"x-mns-request-id: [0-9A-F]{24}\r\nx-mns-version: 2015-06-06\r\n"
NO_LENGTH = rb"Connection: close"
END = NO_LENGTH + rb"\r\nContent-Length: "
TYPE = rb"Content-Type: text/xml;charset=utf-8\r\n"
XML = '<?xml version="1.0"?>\n'
NAMESPACE = 'xmlns="http://mns.aliyuncs.com/doc/v1"'

MISSING = "MessageBody, which is required."
NEVER = "AQAAAAEAAAIAAAAAAPuBVx0AAAABAAABi8_l3TB1KCTg3C5MBhAY"


@pytest.fixture
def server(veilmq_server: RunningServer) -> RunningServer:
    assert smq_request(veilmq_server, "PUT", "/queues/q").status == 201
    return veilmq_server


@pytest.mark.parametrize(
    ("name", "status", "end"), [("new", b"201 Created", END + b"0"), ("q", b"204 No Content", NO_LENGTH)]
)
def test_a_created_or_existing_queue_has_a_location(
    server: RunningServer, name: str, status: bytes, end: bytes
) -> None:
    head = smq_request(server, "PUT", f"/queues/{name}").head
    location = b"Location: http://h:1/queues/" + name.encode() + b"\r\n"
    assert re.fullmatch(rb"HTTP/1.1 " + status + rb"\r\n" + DATE + ID + location + end, head)


def test_an_error_has_four_elements_and_the_namespace(server: RunningServer) -> None:
    reply = smq_request(server, "GET", "/queues/none")
    assert re.fullmatch(rb"HTTP/1.1 404 Not Found\r\n" + DATE + TYPE + ID + END + rb"\d+", reply.head)
    identifier = re.search(rb"x-mns-request-id: (\w+)", reply.head)
    assert identifier is not None
    assert reply.body == XML + lines(
        f"<Error {NAMESPACE}><Code>QueueNotExist</Code>"
        "<Message>The queue name you provided is not exist.</Message>"
        f"<RequestId>{identifier[1].decode()}</RequestId><HostId>http://h:1</HostId></Error>"
    )

    heads = [smq_request(server, "GET", "/queues/q").head for _ in range(3)]
    assert len({re.findall(rb"x-mns-request-id: (\w+)", head)[0] for head in heads}) == 3


def test_the_replies_for_messages(server: RunningServer) -> None:
    now_ms = server.clock.now_ms()
    sent = smq_request(server, "POST", "/queues/q/messages", message("a&amp;b"))
    identifier, digest = sent.text("MessageId"), "B96E7BDA9C9FEEE3259B177BD456B0A5"
    assert re.fullmatch(rb"HTTP/1.1 201 Created\r\n" + DATE + TYPE + ID + END + rb"\d+", sent.head)
    assert sent.body == XML + lines(
        f"<Message {NAMESPACE}><MessageId>{identifier}</MessageId><MessageBodyMD5>{digest}</MessageBodyMD5></Message>"
    )
    peeked = smq_request(server, "GET", "/queues/q/messages?peekonly=true")
    assert peeked.body == XML + lines(
        f"<Message {NAMESPACE}><MessageId>{identifier}</MessageId><MessageBodyMD5>{digest}</MessageBodyMD5>"
        f"<MessageBody>a&amp;b</MessageBody><EnqueueTime>{now_ms}</EnqueueTime>"
        f"<FirstDequeueTime>{now_ms}</FirstDequeueTime><DequeueCount>0</DequeueCount><Priority>8</Priority></Message>"
    )
    got = smq_request(server, "GET", "/queues/q/messages?numOfMessages=1")
    handle = got.text("ReceiptHandle")
    assert got.body == XML + lines(
        f"<Messages {NAMESPACE}><Message><MessageId>{identifier}</MessageId>"
        f"<ReceiptHandle>{handle}</ReceiptHandle><MessageBodyMD5>{digest}</MessageBodyMD5>"
        f"<MessageBody>a&amp;b</MessageBody><EnqueueTime>{now_ms}</EnqueueTime>"
        f"<NextVisibleTime>{now_ms + 30_000}</NextVisibleTime><FirstDequeueTime>{now_ms}</FirstDequeueTime>"
        "<DequeueCount>1</DequeueCount><Priority>8</Priority></Message></Messages>"
    )
    changed = smq_request(server, "PUT", f"/queues/q/messages?ReceiptHandle={handle}&VisibilityTimeout=7")
    assert changed.body == XML + lines(
        f"<ChangeVisibility {NAMESPACE}><ReceiptHandle>{changed.text('ReceiptHandle')}</ReceiptHandle>"
        f"<NextVisibleTime>{now_ms + 7_000}</NextVisibleTime></ChangeVisibility>"
    )
    deleted = smq_request(server, "DELETE", f"/queues/q/messages?ReceiptHandle={changed.text('ReceiptHandle')}")
    assert re.fullmatch(rb"HTTP/1.1 204 No Content\r\n" + DATE + ID + NO_LENGTH, deleted.head)
    assert re.fullmatch(r"[A-Za-z0-9_.~-]{1,120}", handle), "three SDKs do not escape it in the query"


def test_the_replies_for_the_account(server: RunningServer) -> None:
    shown = smq_request(server, "GET", "/?accountmeta=true")
    assert shown.body == XML + lines(f"<Account {NAMESPACE}><LoggingBucket></LoggingBucket></Account>")
    opened = smq_request(server, "POST", "/commonbuy/openservice")
    assert opened.status == 200
    assert opened.body == XML + lines(f"<OpenService {NAMESPACE}><OrderId>0</OrderId></OpenService>")


def test_a_listing_has_attributes_on_request(server: RunningServer) -> None:
    listed = smq_request(server, "GET", "/queues")
    assert listed.body == XML + lines(
        f"<Queues {NAMESPACE}><Queue><QueueURL>http://h:1/queues/q</QueueURL></Queue></Queues>"
    )
    detailed = smq_request(server, "GET", "/queues", "", "x-mns-with-meta: true")
    shown = smq_request(server, "GET", "/queues/q").body
    attributes = shown.partition(">\n")[2].partition(">")[2].removesuffix("</Queue>")
    assert detailed.body == listed.body.replace("</QueueURL>", f"</QueueURL>{attributes.removesuffix(chr(10))}")
    assert detailed.texts("QueueName") == ["q"]


def test_the_reply_for_a_queue_has_twelve_attributes_and_no_others(server: RunningServer) -> None:
    """No SDK knows others, such as those of dead letters, and one fails on nested elements."""
    extended = element("DeadLetterTargetQueue", "q") + element("MaxReceiveCount", 3)
    made = smq_request(server, "PUT", "/queues/more", f"<Queue>{extended}{element('MaxReceivesPerSecond', 5)}</Queue>")
    assert made.status == 201
    shown = " ".join(re.findall(r"<(\w+)>", smq_request(server, "GET", "/queues/more").body))
    assert shown == (
        "QueueName CreateTime LastModifyTime DelaySeconds MaximumMessageSize MessageRetentionPeriod VisibilityTimeout "
        "PollingWaitSeconds LoggingEnabled ActiveMessages InactiveMessages DelayMessages"
    )


@pytest.mark.parametrize(
    "request_",
    [
        ("GET", "/queues/q/messages?NUMOFMESSAGES=1&WaitSeconds=0"),
        ("GET", "/queues/q/messages/?numofmessages=1&peekonly=false"),
        ("GET", "/queues/q/messages?numOfMessages=1&PeekOnly=True"),
        ("GET", "/queues/%71/messages?numOf%4Dessages=1"),
    ],
    ids=lambda row: row[1],
)
def test_names_of_parameters_are_case_insensitive(server: RunningServer, request_: tuple[str, str]) -> None:
    smq_request(server, "POST", "/queues/q/messages/", message("m"))
    assert smq_request(server, *request_).texts("MessageBody") == ["m"]


@pytest.mark.parametrize(
    "body",
    [
        '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<Message xmlns="http://mns.aliyuncs.com/doc/v1/">{}</Message>',
        '<m:Message xmlns:m="http://mns.aliyuncs.com/doc/v1">\n  {}\n</m:Message>\n',
        '<!-- <Messages> --><Message a="1">{}<Unknown><Deep/></Unknown></Message>',
    ],
    ids=["byte order mark", "prefix", "comment"],
)
def test_the_xml_of_every_sdk_is_accepted(server: RunningServer, body: str) -> None:
    inner = "<Priority> 3 </Priority><MessageBody>m</MessageBody><DelaySeconds>\n0 </DelaySeconds>"
    assert smq_request(server, "POST", "/queues/q/messages", body.format(inner)).status == 201
    assert smq_request(server, "GET", "/queues/q/messages").text("Priority") == "3"


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (("GET", "/queues/q/messages"), 404, "MessageNotExist"),
        (("GET", "/queues/q/messages?peekonly=true"), 404, "MessageNotExist"),
        (("GET", "/queues/q/messages?waitseconds=31"), 400, "InvalidArgument"),
        (("GET", "/queues/q/messages?waitseconds=x"), 400, "InvalidArgument"),
        (("GET", "/queues/q/messages?numOfMessages=0"), 400, "InvalidArgument"),
        (("GET", "/queues/q/messages?numOfMessages=17"), 400, "InvalidArgument"),
        (("GET", "/queues/q/messages?numOfMessages="), 400, "InvalidArgument"),
        (("GET", "/queues/q/messages?waitseconds=1&WAITSECONDS=2"), 400, "InvalidQueryString"),
        (("GET", "/queues/q/messages?a=%FF"), 400, "InvalidQueryString"),
        (("GET", "/queues/%FF"), 400, "InvalidRequestURL"),
        (("GET", "/queues/q/messages/more"), 400, "InvalidRequestURL"),
        (("GET", "/"), 400, "InvalidRequestURL"),
        (("GET", "/?account"), 400, "InvalidRequestURL"),
        (("POST", "/commonbuy/closeservice"), 400, "InvalidRequestURL"),
        (("POST", "/queues/q"), 400, "InvalidRequestURL"),
        (("DELETE", "/queues/none"), 204, ""),
        (("DELETE", "/queues/q/messages"), 400, "MissingReceiptHandle"),
        (("DELETE", "/queues/q/messages?ReceiptHandle="), 400, "MissingReceiptHandle"),
        (("DELETE", "/queues/q/messages?ReceiptHandle=x"), 400, "ReceiptHandleError"),
        (("DELETE", f"/queues/q/messages?ReceiptHandle={NEVER}"), 400, "ReceiptHandleError"),
        (("DELETE", "/queues/q/messages", "<ReceiptHandles/>"), 400, "InvalidArgument"),
        (("DELETE", "/queues/q/messages", "<Handles/>"), 400, "MalformedXML"),
        (("PUT", "/queues/q/messages?VisibilityTimeout=1"), 400, "MissingReceiptHandle"),
        (("PUT", "/queues/q/messages?ReceiptHandle=x"), 400, "MissingVisibilityTimeout"),
        (("PUT", "/queues/q/messages?ReceiptHandle=x&VisibilityTimeout=0"), 400, "InvalidArgument"),
        (("PUT", "/queues/q/messages?ReceiptHandle=x&VisibilityTimeout=43201"), 400, "InvalidArgument"),
        (("PUT", "/queues/q/messages?ReceiptHandle=x&VisibilityTimeout=-1"), 400, "InvalidArgument"),
        (("PUT", "/queues/q/messages?ReceiptHandle=x&VisibilityTimeout=1"), 400, "ReceiptHandleError"),
        (("POST", "/queues/q/messages"), 400, "MalformedXML"),
        (("POST", "/queues/q/messages", "<Message><MessageBody>m</Message>"), 400, "MalformedXML"),
        (("POST", "/queues/q/messages", "<Letter><MessageBody>m</MessageBody></Letter>"), 400, "MalformedXML"),
        (("POST", "/queues/q/messages", "<Message></Message>"), 400, "InvalidArgument"),
        (("POST", "/queues/q/messages", "<Message><MessageBody></MessageBody></Message>"), 400, "InvalidArgument"),
        (("POST", "/queues/q/messages", message("m", Priority=17)), 400, "InvalidArgument"),
        (("POST", "/queues/q/messages", message("m", Priority="high")), 400, "InvalidArgument"),
        (("POST", "/queues/q/messages", message("m", DelaySeconds=604_801)), 400, "InvalidArgument"),
        (("POST", "/queues/q/messages", message("m", MessageGroupId="g g")), 400, "InvalidArgument"),
        (("POST", "/queues/q/messages", f"<Messages>{message('') * 2}</Messages>"), 400, "InvalidArgument"),
        (("PUT", "/queues/q", "<Queue><VisibilityTimeout>31</VisibilityTimeout></Queue>"), 409, "QueueAlreadyExist"),
        (("PUT", "/queues/r", "<Queue><VisibilityTimeout>0</VisibilityTimeout></Queue>"), 400, "InvalidArgument"),
        (("PUT", "/queues/r", "<Queue><LoggingEnabled>yes</LoggingEnabled></Queue>"), 400, "InvalidArgument"),
        (("PUT", "/queues/r", "<Queue><QueueType>lifo</QueueType></Queue>"), 400, "InvalidArgument"),
        (("PUT", "/queues/r", "<Topic/>"), 400, "MalformedXML"),
        (("PUT", "/queues/a_b"), 400, "InvalidQueueName"),
        (("PUT", "/queues/-a"), 400, "InvalidQueueName"),
        (("PUT", f"/queues/1{'a' * 255}"), 201, ""),
        (("PUT", "/queues/"), 400, "InvalidRequestURL"),
        (("PUT", f"/queues/{'a' * 257}"), 400, "QueueNameLengthError"),
        (("PUT", "/queues/q?metaoverride=true", "<Queue><QueueType>fifo</QueueType></Queue>"), 400, "InvalidArgument"),
        (("PUT", "/queues/none?metaOverride=true", "<Queue/>"), 404, "QueueNotExist"),
        (("PUT", "/?accountmeta=true", "<Accounts/>"), 400, "MalformedXML"),
        (
            ("PUT", "/?accountmeta=true", f"<Account>{element('LoggingBucket', 'b' * 257)}</Account>"),
            400,
            "InvalidArgument",
        ),
        (("GET", "/queues", "", "x-mns-ret-number: 0"), 400, "InvalidArgument"),
        (("GET", "/queues", "", "x-mns-with-meta: yes"), 400, "InvalidArgument"),
    ],
    ids=lambda row: " ".join(row)[-100:] if isinstance(row, tuple) else None,
)
def test_an_invalid_request_has_an_error_code(
    server: RunningServer, arguments: tuple[str, ...], status: int, code: str
) -> None:
    reply = smq_request(server, *arguments)
    assert reply.status == status
    if code:
        assert (reply.code, reply.text("HostId")) == (code, "http://h:1")
        assert reply.text("Message")


@pytest.mark.parametrize(
    ("arguments", "host", "status", "code"),
    [
        (("POST", "/queues/q/messages", message("x" * HTTP_BODY_BYTES_MAX)), "h:1", 413, "InvalidArgument"),
        (("GET", "/queues/" + "q" * HTTP_TARGET_BYTES_MAX), "h:1", 414, "InvalidRequestURL"),
        (("GET", "/queues", "", "Expect: a miracle"), "h:1", 417, "InvalidRequestURL"),
        (("GET", "/queues"), "a<b", 400, "InvalidRequestURL"),
        (("PATCH", "/queues/q"), "h:1", 405, "InvalidRequestURL"),
        (("PUT", "/queues/q", "", "Origin: http://evil.example"), "h:1", 403, "AccessDenied"),
        (("GET", "/queues", "", "Accept-Language: *"), "h:1", 403, "AccessDenied"),
    ],
    ids=["body", "target", "expectation", "host", "method", "page", "browser"],
)
def test_errors_of_http_are_errors_of_smq(
    server: RunningServer, arguments: tuple[str, ...], host: str, status: int, code: str
) -> None:
    """One SDK takes every reply without XML for a success, and would lose a message that is too large."""
    reply = smq_request(server, *arguments, host=host)
    assert (reply.status, reply.code) == (status, code)
    assert reply.text("HostId").replace("&lt;", "<") == f"http://{host}"
    assert reply.text("Message")
    assert b"\r\nContent-Type: text/xml;charset=utf-8\r\n" in reply.head
    assert (b"\r\nAllow: DELETE, GET, POST, PUT\r\n" in reply.head) is (status == 405)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("PUT", "/queues/q/messages?ReceiptHandle=x&VisibilityTimeout=0"),
            "The value of VisibilityTimeout should between 1 and 43200 seconds.",
        ),
        (
            ("PUT", "/queues/r", "<Queue><MaximumMessageSize>1</MaximumMessageSize></Queue>"),
            "The value of MaximumMessageSize should between 1024 and 65536 bytes.",
        ),
        (("POST", "/queues/q/messages", message("m", Priority=17)), "The value of Priority should between 1 and 16."),
        (("GET", "/queues/q/messages?numOfMessages=17"), "The value of numOfMessages should between 1 and 16."),
        (
            ("POST", "/queues/q/messages", "<Message></Message>"),
            f"The XML you provided did not validate against our published schema, cause by {MISSING}",
        ),
        (("GET", "/queues?a=1&a=2"), 'Http request URL contains invalid querystring item "a".'),
    ],
    ids=["seconds", "bytes", "priority", "count", "cause", "query"],
)
def test_errors_have_the_texts_of_the_service(server: RunningServer, arguments: tuple[str, ...], text: str) -> None:
    assert smq_request(server, *arguments).text("Message") == text
