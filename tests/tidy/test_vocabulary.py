"""One vocabulary inside: the words of the protocols stop at the wire.

Inside it is `visible_at_ms`, `receipt`, `delay_s`; the names that SQS and SMQ give to these appear in wire/,
and in the parts that face people who know them (cli/, client/, console/). Documentation may name them anywhere.
"""

import re
from collections.abc import Iterator

import pytest

from tests.tidy.tree import SRC, Module, module, modules, queries, words

FACING_OUTSIDE = ("src/veilmq/wire/", "src/veilmq/cli/", "src/veilmq/client/", "src/veilmq/console/")

FOREIGN = re.compile(
    "|".join(
        [
            # SQS
            "ApproximateFirstReceiveTimestamp",
            "ApproximateNumberOfMessages",
            "ApproximateReceiveCount",
            "BinaryValue",
            "DelaySeconds",
            "KmsMasterKeyId",
            "MaxNumberOfMessages",
            "MaxReceiveCount",
            "MaximumMessageSize",
            "MD5Of",
            "MessageAttributes?",
            "MessageBody",
            "MessageDeduplicationId",
            "MessageGroupId",
            "MessageRetentionPeriod",
            "MessageSystemAttributes?",
            "QueueArn",
            "QueueName",
            "QueueUrl",
            "ReceiptHandle",
            "ReceiveMessageWaitTimeSeconds",
            "ReceiveRequestAttemptId",
            "RedriveAllowPolicy",
            "RedrivePolicy",
            "SentTimestamp",
            "StringValue",
            "VisibilityTimeout",
            "WaitTimeSeconds",
            # SMQ
            "ActiveMessages",
            "DelayMessages",
            "DequeueCount",
            "EnqueueTime",
            "FirstDequeueTime",
            "InactiveMessages",
            "NextVisibleTime",
            "PollingWaitSeconds",
        ]
    ),
    re.IGNORECASE,
)


def foreign(source: Module) -> Iterator[str]:
    """Yield each identifier and each string of `source` that holds a word of a protocol."""
    for line, text in words(source.tree):
        for match in FOREIGN.finditer(text):
            yield f"{source.path}:{line}: {match[0]} belongs to wire/; use the word of core"


def test_foreign_words_stop_at_the_wire() -> None:
    found: list[str] = []
    for source in modules(under=SRC):
        if not source.path.startswith(FACING_OUTSIDE):
            found += foreign(source)
    for query in queries(under=SRC):
        found += [f"{query.path}: {match[0]} belongs to wire/" for match in FOREIGN.finditer(query.text)]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("class VisibilityTimeoutTooLong: ...", id="class"),
        pytest.param("def take(*, receiptHandle): ...", id="argument"),
        pytest.param("command.QueueUrl", id="attribute"),
        pytest.param("send(DelaySeconds=5)", id="keyword"),
        pytest.param("import a.NextVisibleTime", id="import"),
        pytest.param("name = 'WaitTimeSeconds'", id="string"),
        pytest.param("name = f'{x} DequeueCount'", id="formatted-string"),
        pytest.param("name = b'MessageBody'", id="bytes"),
    ],
)
def test_the_rule_sees_a_foreign_word(text: str) -> None:
    assert len(list(foreign(module(text)))) == 1


def test_the_rule_lets_documentation_pass() -> None:
    text = '"""VisibilityTimeout."""\n# ReceiptHandle\nreceipt = 1\n"""QueueUrl, documented."""\n'
    assert list(foreign(module(text))) == []
