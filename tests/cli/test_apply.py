"""`veilmq apply` against real servers: the queues and topics that a file declares."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Veilmq
from tests.server.keys import OWNER, REGION, SECRETS, written
from tests.tidy.tree import ROOT
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Settings
from veilmq.client.topics import Topics
from veilmq.client.transport import SigningKey, Transport
from veilmq.core.settings import QueueSettings
from veilmq.testing import RunningServer, faults

QUEUE = "arn:aws:sqs:us-east-1:000000000000"
OTHER = "arn:aws:sqs:eu-west-1:111111111111"  # only the name of an ARN matters
POLICY = {"Effect": "Allow", "Principal": {"AWS": "111111111111"}, "Action": "SQS:SendMessage"}
TOML = f"""
port = 9324  # a setting of the server, which `apply` ignores

[queues.orders]
visibility_timeout_s = 60
DelaySeconds = 900
dead_letter_queue = "orders-dead"
policy = {{ Version = "2012-10-17", Statement = {json.dumps(POLICY).replace(": ", " = ")} }}
tags = {{ team = "shop", empty = "" }}

[queues.orders-dead]
delay_s = 604_800
MessageRetentionPeriod = "1209600"
RedriveAllowPolicy = {{ redrivePermission = "byQueue", sourceQueueArns = ["{QUEUE}:orders", "{OTHER}:more"] }}

[queues."in-order.fifo"]
ContentBasedDeduplication = true
RedrivePolicy = {{ deadLetterTargetArn = "{QUEUE}:failed.fifo", maxReceiveCount = 4 }}

[queues."failed.fifo"]

[topics.news]
message_bytes_max = 2048
LoggingEnabled = true

[topics.news.subscriptions.to-orders]
queue = "orders"
format = "JSON"
filter_tag = "Urgent"

[topics.plain.subscriptions.to-orders]
url = "acs:mns:eu-west-1:111111111111:queues/orders"
filter_tag = ""
"""
TAGS = "\n".join(f"t{number} = 'x'" for number in range(51))
ELASTICMQ = """
include classpath("application.conf")

// The address of ElasticMQ itself
node-address { protocol = http, host = "*", port = 9324, context-path = "" }
rest-sqs { enabled = true, bind-port = 9324, bind-hostname = "0.0.0.0", sqs-limits = strict }
generate-node-address = false
queues-storage { enabled = true, path = "/data/queues.conf" }

queues {
  work {
    defaultVisibilityTimeout = 10 seconds
    delay = 5s
    receiveMessageWait = "1 second"
    deadLettersQueue {
      name = "work-failed"
      maxReceiveCount = 3 // from 1 to 1000
    }
    fifo = false
    contentBasedDeduplication = false
    copyTo = "audit"
    tags { team = shop, stage = 5, "is live" = true }
  }
  work-failed { }
  audit { delay = 0 }
  moved { moveTo = "audit" }
  in-order {
    fifo = true
    contentBasedDeduplication = true
    deadLettersQueue { name = ordered-failed, maxReceiveCount = 1 }
  }
  "ordered-failed" { fifo = true, defaultVisibilityTimeout = 2 minutes }
}

aws { region = us-west-2, accountId = 000000000000 }
"""


@pytest.fixture(params=["memory", "postgres"])
def server(
    request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningServer]:
    with RunningServer(**store_settings(request.param)) as running:
        monkeypatch.setenv("VEILMQ_ENDPOINT", running.endpoint)
        yield running


@pytest.fixture
def memory_client(veilmq_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpQueueClient]:
    """A client of a server in memory, for tests that do not depend on the store."""
    monkeypatch.setenv("VEILMQ_ENDPOINT", veilmq_server.endpoint)
    with HttpQueueClient(veilmq_server.endpoint) as opened:
        yield opened


PAGE = (ROOT / "docs" / "declared-queues.md").read_text(encoding="utf-8")


def declare(text: str, name: str = "queues.toml") -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def settings_of(server: RunningServer, queue: str) -> QueueSettings:
    with Settings(server.endpoint, queue) as settings:
        return settings.show().settings


def counted(created: int, changed: int, deleted: int, unchanged: int) -> str:
    return f"{created} created, {changed} changed, {deleted} deleted, {unchanged} unchanged\n"


def test_apply_creates_queues_and_reverts_manual_changes(client: HttpQueueClient, veilmq: Veilmq) -> None:
    queues = [
        f"[queues.q{number}]\nvisibility_timeout_s = {number}\n"
        f'dead_letter_queue = "q{number + 1}"\ntags = {{ n = "{number}" }}'
        for number in range(49)
    ]
    file = declare("\n".join([*queues, "[queues.q49]"]))
    first = veilmq("apply", file)
    assert (first.code, first.err) == (0, "")
    lines = first.out.splitlines()
    assert lines[:2] == ["+ queue q49", "+ queue q48"]  # targets first
    settings = ["visibility_timeout_s: 48", "dead_letter_queue: q49", "receives_max: 10", "tags.n: 48"]
    assert [line.strip() for line in lines[2:6]] == settings
    assert first.out.endswith("\n" + counted(50, 0, 0, 0))
    shown = {name: client.show(name) for name in client.list_queues()}
    assert len(shown) == 50
    unchanged = counted(0, 0, 0, 50)
    assert veilmq("apply", file).out == unchanged
    assert {name: client.show(name) for name in shown} == shown
    found = veilmq("apply", file, "--dry-run")
    assert (found.code, found.out) == (0, f"Would be: {unchanged}")

    client.set("q7", {"visibility_timeout_s": 300, "retention_s": 60})
    client.tag("q7", {"n": "x", "by": "hand"})
    difference = "~ queue q7\n    visibility_timeout_s: 300 -> 7\n    tags.by: hand -> none\n    tags.n: x -> 7\n"
    found = veilmq("apply", file, "--dry-run")
    assert (found.code, found.out) == (3, f"{difference}Would be: {counted(0, 1, 0, 49)}")
    assert client.show("q7").settings.visibility_timeout_s == 300
    assert veilmq("apply", file).out == difference + counted(0, 1, 0, 49)
    assert client.show("q7").settings == shown["q7"].settings.changed({"retention_s": 60})  # not in the file
    assert client.tags("q7") == {"n": "7"}


def test_apply_sets_every_kind_of_attribute(server: RunningServer, client: HttpQueueClient, veilmq: Veilmq) -> None:
    """The file has names of SQS and of veilmq, in tables and texts."""
    file = declare(TOML, "veilmq.toml")
    assert veilmq("apply", file).out.endswith(counted(8, 0, 0, 0))
    orders = settings_of(server, "orders")
    policy = {"Version": "2012-10-17", "Statement": POLICY}
    assert json.loads(orders.policy) == policy
    assert orders.changed({"policy": ""}) == QueueSettings(
        visibility_timeout_s=60,
        delay_s=900,
        dead_letter_queue="000000000000/orders-dead",
        receives_max=10,
        tags={"team": "shop", "empty": ""},
    )
    assert settings_of(server, "orders-dead") == QueueSettings(
        delay_s=604_800,
        retention_s=1_209_600,
        redrive_permission="listed",
        redrive_sources=("000000000000/orders", "000000000000/more"),
    )
    assert settings_of(server, "in-order.fifo") == QueueSettings(
        fifo=True, content_deduplication=True, dead_letter_queue="000000000000/failed.fifo", receives_max=4
    )
    topics = Topics(Transport(server.endpoint))
    news, subscription = topics.show("news"), topics.show("news/subscriptions/to-orders")
    assert news is not None
    assert (news["MaximumMessageSize"], news["LoggingEnabled"]) == ("2048", "True")
    assert subscription is not None
    assert subscription["Endpoint"] == "acs:mns::000000000000:queues/orders"
    assert (subscription["FilterTag"], subscription["NotifyContentFormat"]) == ("Urgent", "JSON")
    with Settings(server.endpoint, "orders") as settings:
        settings.set({"policy": json.dumps(policy, indent=2)})  # the same policy with other white space
    assert veilmq("apply", file).out == counted(0, 0, 0, 8)
    topics.set("news", {"MaximumMessageSize": "1024"})
    topics.create("news/subscriptions/other", {"Endpoint": "acs:mns::000000000000:queues/orders"})
    topics.create("old", {})
    lines = veilmq("apply", file, "--prune", "--yes").out.splitlines()
    assert lines[:2] == ["~ topic news", "    MaximumMessageSize: 1024 -> 2048"]
    assert lines[2:] == ["- subscription news/other", "- topic old", counted(0, 1, 2, 7).strip()]
    assert (topics.names(), topics.names("news")) == (["news", "plain"], ["to-orders"])
    assert veilmq("apply", file, "--prune", "--dry-run").code == 0


@pytest.mark.parametrize("order", ["source first", "target first"])
def test_apply_orders_changes_by_dead_letter_queues(order: str, memory_client: HttpQueueClient, veilmq: Veilmq) -> None:
    """A dead-letter queue may get its permissions in the same file, or exist on the server only."""
    memory_client.create_queue("there")
    tables = [
        '[queues.a]\ndead_letter_queue = "b"\nreceives_max = 2',
        '[queues.b]\ndead_letter_queue = "there"\nredrive_permission = "listed"\nredrive_sources = ["a"]',
    ]
    file = declare("\n".join(tables if order == "source first" else tables[::-1]))
    assert veilmq("apply", file).code == 0
    assert memory_client.dead_letter_sources("b") == ["a"]
    assert memory_client.dead_letter_sources("there") == ["b"]
    # reversed: each of the two queues must change before the other
    closed = 'redrive_permission = "none"\nredrive_sources = []'
    declare(f'[queues.b]\ndead_letter_queue = "a"\n{closed}\n[queues.a]\ndead_letter_queue = ""')
    assert veilmq("apply", file).code == 0
    assert (memory_client.dead_letter_sources("a"), memory_client.dead_letter_sources("b")) == (["b"], [])
    assert veilmq("apply", file).out == counted(0, 0, 0, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[queues.new]\n[queues.plain]\nfifo = true", "queue plain: fifo: A queue cannot change between FIFO"),
        ('[queues.new]\n[queues."plain.fifo"]\nfifo = false', "queues.plain.fifo: A name that ends in .fifo is for"),
        ('[queues.new]\ndead_letter_queue = "none"', "queue new: The dead-letter queue none does not exist; create it"),
        ('[queues.new]\ndead_letter_queue = "f.fifo"\n[queues."f.fifo"]', "f.fifo has another type than new"),
        ('[queues.new]\ndead_letter_queue = "c"\n[queues.c]\nredrive_permission = "none"', "c does not allow new"),
        ("[queues.new]\nreceives_max = 3", "queue new: receives_max: A dead-letter queue and a maximum number"),
        ("[queues.new]\nContentBasedDeduplication = true", "queue new: content_deduplication: Only FIFO queues"),
        ('[queues.new]\n[topics.t.subscriptions.s]\nqueue = "none"', "t/s: there is no queue none; declare it."),
    ],
    ids=["fifo", "no-fifo", "missing", "type", "permission", "half", "not-fifo", "target"],
)
def test_a_refused_file_changes_nothing(text: str, words: str, memory_client: HttpQueueClient, veilmq: Veilmq) -> None:
    memory_client.create_queue("plain")
    result = veilmq("apply", declare(text))
    assert (result.code, result.out) == (2 if ".fifo: A name" in words else 1, "")
    assert words in result.err
    assert memory_client.list_queues() == ["plain"]


def test_the_endpoint_of_a_subscription_cannot_be_changed(memory_client: HttpQueueClient, veilmq: Veilmq) -> None:
    text = '[queues.a]\n[queues.b]\n[topics.t.subscriptions.s]\nstrategy = "BACKOFF_RETRY"\n'
    assert veilmq("apply", declare(text + 'queue = "a"')).code == 0
    result = veilmq("apply", declare(text + 'queue = "b"'))
    result.fails(1, "subscription t/s: queue cannot be changed; give the subscription another name, and --prune")
    changed = text.replace("BACKOFF", "EXPONENTIAL_DECAY") + 'Endpoint = "acs:mns:x:000000000000:queues/a"'
    lines = veilmq("apply", declare(changed)).out.splitlines()
    assert lines[:2] == ["~ subscription t/s", "    NotifyStrategy: BACKOFF_RETRY -> EXPONENTIAL_DECAY_RETRY"]
    assert veilmq("apply", declare(changed)).out == counted(0, 0, 0, 4)


def test_prune_deletes_undeclared_queues_after_confirmation(memory_client: HttpQueueClient, veilmq: Veilmq) -> None:
    file = declare("[queues.kept]")
    memory_client.create_queue("by-hand")
    memory_client.create_queue("kept", {"dead_letter_queue": "by-hand", "receives_max": 3})
    Topics(Transport(os.environ["VEILMQ_ENDPOINT"])).create("news", {})
    veilmq("apply", file, "--prune", "--yes").fails(
        1, "queue kept: its dead-letter queue by-hand would be deleted; declare it, too. Nothing was changed."
    )
    memory_client.set("kept", {"dead_letter_queue": "", "receives_max": 0})
    assert veilmq("apply", file).out == counted(0, 0, 0, 1)
    found = veilmq("apply", file, "--prune", "--dry-run")
    assert (found.code, found.out.splitlines()[0]) == (3, "- queue by-hand")
    unconfirmed = veilmq("apply", file, "--prune")
    assert (unconfirmed.code, "add --yes to go on without it" in unconfirmed.err) == (2, True)
    assert memory_client.list_queues() == ["by-hand", "kept"]
    done = json.loads(veilmq("apply", file, "--prune", "--yes", "--json").out)
    step = {"action": "delete", "kind": "queue", "name": "by-hand", "differences": []}
    assert done == {"steps": [step], "created": 0, "changed": 0, "deleted": 1, "unchanged": 1, "applied": True}
    assert memory_client.list_queues() == ["kept"]
    assert Topics(Transport(os.environ["VEILMQ_ENDPOINT"])).names() == ["news"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[queues.a]\nvisibility_timeout_s = = 3", "is not a TOML file: Invalid value (at line 2, column 24)"),
        ("[queues.a]\nvisibilty_timeout_s = 3", "queues.a: unknown attribute visibilty_timeout_s; did you mean visib"),
        ("[queues.a]\nxyz = 3", "queues.a: unknown attribute xyz; there are visibility_timeout_s,"),
        ("[queues.a]\nvisibility_timeout_s = 43201", "queues.a: visibility_timeout_s: must be 0 to 43200."),
        ("[queues.a]\nVisibilityTimeout = 43201", "parameter VisibilityTimeout. Reason: Must be a whole number"),
        ("[queues.a]\nDelaySeconds = 901", "DelaySeconds. Reason: Must be a whole number between 0 and 900."),
        ('[queues.a]\nvisibility_timeout_s = "3"', "queues.a: visibility_timeout_s: expected `int`, got `str`."),
        ("[queues.a]\nDelaySeconds = 3\ndelay_s = 3", "queues.a: delay_s: is given twice"),
        ('[queues.a]\ndead_letter_queue = "a"', "queues.a: The queue a cannot be its own dead-letter queue"),
        ('[queues.a]\ndead_letter_queue = "b"\n[queues.b]\ndead_letter_queue = "a"', "form a cycle, a -> b -> a; end"),
        ('[queues.a]\nRedrivePolicy = { maxReceiveCount = 3 }', "does not contain mandatory attribute: deadLetterTar"),
        ('[queues.a]\npolicy = { Statement = 3 }', "Statement must be an object or a list of objects."),
        ("[queues.a]\ntags = { a = 1 }", "queues.a: tags: must be a table of texts"),
        ("[queues.a]\ndelay_s = 99999999999999999999", "queues.a: delay_s: must be 0 to 604800."),
        pytest.param(f"[queues.a.tags]\n{TAGS}", "queues.a: Too many tags added for queue a. A queue", id="tags"),
        ('[queues.a]\ndead_letter_queue = "-/b"\n[queues.b]', "must be the name of a queue of the account that has t"),
        pytest.param(f"[queues.a]\npolicy = {'[' * 2_000}", "is nested too deeply.", id="deep"),
        ('[queues."a b"]', "queues.a b: A name has up to 80 letters"),
        ("queues = 3", "queues: must be a table, as [queues]."),
        ("[queues]\na = 3", "queues.a: must be a table, as [queues.a]."),
        ("[queue.a]", "unknown key queue; did you mean queues?"),
        ("[topics.a_b]", "topics.a_b: The topic name you provided is invalid."),
        ("[topics.a]\nmessage_bytes_max = 1", "topics.a: The value of MaximumMessageSize should between 1024 and"),
        ("[topics.a]\nmessage_bytes_max = 1024\nMaximumMessageSize = 1024", "topics.a: message_bytes_max: is given tw"),
        ("[topics.a.subscriptions.s]", "topics.a: subscriptions.s: give queue (the name of a queue) or url"),
        ('[topics.a.subscriptions.s]\nurl = "mailto:x"', "subscriptions by mail and SMS are not supported"),
        ('[topics.a.subscriptions.s]\nurl = "acs:mns:r:queues/q"', "Subscribe a queue (acs:mns:<region>:<account>:que"),
        ('[topics.a.subscriptions.s]\nurl = "acs:mns:r:1:queues/a:queues/b"', "queue name you provided is invalid."),
        ('[topics.a.subscriptions.s]\nqueue = "a/b"', "subscriptions.s: The queue name you provided is invalid."),
        ('[topics.a.subscriptions.s]\nqueue = ""', "subscriptions.s: Queue name length should between 1 and 256."),
        ('[topics.a.subscriptions.s]\nqueue = "q"\nformat = "CSV"', "NotifyContentFormat: must be one of XML, JSON,"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_a_usage_error(
    text: str, words: str, memory_client: HttpQueueClient, veilmq: Veilmq
) -> None:
    result = veilmq("apply", declare(text))
    result.fails(2, "veilmq: queues.toml: ")
    assert words.lower() in result.err.lower()
    assert memory_client.list_queues() == []


@pytest.mark.parametrize(("kind", "unchanged"), [("toml", 6), ("text", 4)])
def test_the_examples_of_the_documentation_work(
    kind: str, unchanged: int, memory_client: HttpQueueClient, veilmq: Veilmq
) -> None:
    """The page shows the diff of its own example after the manual change that it describes."""
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    file = declare(text, "queues.toml" if kind == "toml" else "elasticmq.conf")
    assert veilmq("apply", file).code == 0
    assert veilmq("apply", file).out == counted(0, 0, 0, unchanged)
    if kind == "toml":
        (shown,) = re.findall(r"--dry-run\n(.*?)\$ echo", PAGE, re.DOTALL)
        memory_client.set("orders", {"visibility_timeout_s": 30})
        memory_client.tag("orders", {"team": "mail"})
        assert veilmq("apply", file, "--dry-run").out == shown


@pytest.mark.usefixtures("veilmq_environment")
def test_the_program_of_the_documentation_exports_queues_of_sqs(
    memory_client: HttpQueueClient, veilmq: Veilmq, capsys: pytest.CaptureFixture[str]
) -> None:
    (text,), (program,) = (re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S) for kind in ("toml", "python"))
    assert veilmq("apply", declare(text)).code == 0
    exec(program, {})
    exported = declare(capsys.readouterr().out, "exported.toml")
    assert veilmq("apply", exported, "--dry-run").out == "Would be: " + counted(0, 0, 0, 4)
    memory_client.tag("orders", {"team": "mail"})
    assert "tags.team: mail -> shop" in veilmq("apply", exported, "--dry-run").out


def test_apply_continues_after_a_connection_error(
    memory_client: HttpQueueClient, veilmq_server: RunningServer, veilmq: Veilmq
) -> None:
    """The error reports the completed steps; the next run does the rest."""
    memory_client.create_queue("a")
    veilmq_server.faults.script("TagQueue", faults.REQUEST_DROPPED, times=3)
    file = declare('[queues.b]\n[queues.a]\ntags = { team = "shop" }\n[queues.c]')
    result = veilmq("apply", file)
    assert result.code == 1
    assert "at queue a (1 of 3 steps are done)." in result.err
    assert memory_client.list_queues() == ["a", "b"]
    assert veilmq("apply", file).out.endswith(counted(1, 1, 0, 1))


def test_an_unreadable_file_is_a_usage_error(veilmq: Veilmq) -> None:
    Path("latin.conf").write_bytes(b"queues { \xe9 {} }")
    veilmq("apply", "latin.conf").fails(2, "latin.conf: 'utf-8' codec can't decode byte 0xe9 in position 9")
    veilmq("apply", "none.toml").fails(2, "none.toml: cannot be read: No such file or directory.")
    veilmq("apply", declare(ELASTICMQ, "a.toml")).fails(2, "(The name of a HOCON file ends in .conf.)")
    veilmq("apply", declare("[queues.a]"), "--endpoint", "here").fails(2, "--endpoint: 'here' is not an endpoint")


def test_apply_reads_a_configuration_file_of_elasticmq(server: RunningServer, veilmq: Veilmq) -> None:
    """It reads all keys in ElasticMQ's README, and warns of those without effect."""
    file = declare(ELASTICMQ, "elasticmq.conf")
    done = veilmq("apply", file)
    assert done.code == 0, done.err
    assert done.out.endswith(counted(6, 0, 0, 0))
    assert settings_of(server, "work") == QueueSettings(
        visibility_timeout_s=10,
        delay_s=5,
        receive_wait_s=1,
        dead_letter_queue="000000000000/work-failed",
        receives_max=3,
        tags={"team": "shop", "stage": "5", "is live": "true"},
    )
    assert settings_of(server, "in-order.fifo") == QueueSettings(
        fifo=True, content_deduplication=True, dead_letter_queue="000000000000/ordered-failed.fifo", receives_max=1
    )
    assert settings_of(server, "ordered-failed.fifo") == QueueSettings(fifo=True, visibility_timeout_s=120)
    notes = done.err.splitlines()
    assert [note.partition(" has no effect")[0] for note in notes] == [
        "veilmq: queues.work: copyTo = audit",
        "veilmq: queues.moved: moveTo = audit",
        "veilmq: aws, generate-node-address, node-address, queues-storage, rest-sqs:",
    ]
    assert veilmq("apply", file).out == counted(0, 0, 0, 6)


def test_apply_reads_a_file_that_elasticmq_wrote(
    memory_client: HttpQueueClient, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty texts count as absent and variables as texts; a file without queues declares nothing."""
    monkeypatch.setenv("RECEIVES", "3")
    monkeypatch.setenv("FIFO", "true")
    text = """queues {
      test { copyTo = "", created = 100, deadLettersQueue { maxReceiveCount = ${RECEIVES}, name = dead },
             defaultVisibilityTimeout = 3000, delay = "0", fifo = ${FIFO}, lastModified = 2, moveTo = "", tags = null }
      dead { fifo = ${?FIFO} }
    }"""
    done = veilmq("apply", declare(text, "queues.conf"))
    assert (done.code, done.err) == (0, "")
    assert memory_client.list_queues() == ["dead.fifo", "test.fifo"]
    settings = memory_client.show("test.fifo").settings
    assert (settings.visibility_timeout_s, settings.delay_s, settings.receives_max) == (3, 0, 3)
    pruned = veilmq("apply", declare("node-address { port = 1 }", "queues.conf"), "--prune", "--yes")
    assert pruned.out == counted(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('queues { a { fifo = true }, "a.fifo" { fifo = true } }', "queues.a: is given twice, as a.fifo is the same"),
        ("queues { a { x = ", "is not a HOCON file (at line 1, column 18)."),
        ("queues { a { visibilityTimeout = 3 s } }", "queues.a: unknown key visibilityTimeout; there are defaultVisi"),
        ("queues { a { deadLettersQueue { name = b } } }", "queues.a.deadLettersQueue: needs name and maxRec"),
        ("queues { a { deadLettersQueue { to = b } } }", "queues.a.deadLettersQueue: unknown key to; there are name,"),
        ("queues { a { delay = 10 } }", "queues.a.delay: must be whole seconds, such as 10 seconds; a bare number"),
        ("queues { a { delay = soon } }", "queues.a.delay: must be whole seconds"),
        ("queues { a { delay = 16 minutes } }\nqueues.a.delay = 8 days", "queues.a: delay_s: must be 0 to 604800."),
        ('queues { a { delay = "999999999999 days" } }', "queues.a.delay: must be whole seconds"),
        ('\n\ninclude classpath("x")\nqueues = [', "is not a HOCON file (at line 4, column "),
        ("queues { a = 3 }", "queues.a: must be an object, in braces."),
        ("queues = ${none}", "is not a readable HOCON file: Cannot resolve variable ${none}"),
    ],
)
def test_an_invalid_file_of_elasticmq_is_a_usage_error(text: str, words: str, veilmq: Veilmq) -> None:
    veilmq("apply", declare(text, "bad.conf")).fails(2, "veilmq: bad.conf: ", words)


def test_a_file_of_elasticmq_needs_an_extra(veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyhocon", None)
    words = "elasticmq.conf: HOCON needs the module pyhocon: pip install 'veilmq[hocon]'."
    veilmq("apply", declare(ELASTICMQ, "elasticmq.conf")).fails(2, words)


def test_apply_signs_its_requests(veilmq: Veilmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests for queues have the signature of SQS, those for topics that of SMQ."""
    file = declare(TOML)
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        monkeypatch.setenv("VEILMQ_ENDPOINT", server.endpoint)
        monkeypatch.setenv("AWS_REGION", REGION)
        veilmq("apply", file).fails(1, "(MissingAuthenticationToken)")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOWNER")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS["AKIDOWNER"])
        assert veilmq("apply", file).out.endswith(counted(8, 0, 0, 0))
        assert veilmq("apply", file).out == counted(0, 0, 0, 8)
        key = SigningKey(id="AKIDOWNER", secret=SECRETS["AKIDOWNER"], region=REGION)
        found = Topics(Transport(server.endpoint), key=key).show("news/subscriptions/to-orders")
        assert found is not None
        assert found["Endpoint"] == f"acs:mns::{OWNER}:queues/orders"
        wrong = SigningKey(id="AKIDOWNER", secret="wrong", region=REGION)
        with pytest.raises(ClientError, check=lambda error: error.code == "SignatureDoesNotMatch"):
            Topics(Transport(server.endpoint), key=wrong).names()
        result = veilmq("apply", declare('[queues.a]\n[topics.t.subscriptions.s]\nurl = "http://127.0.0.1:1/"'))
        assert result.code == 1
        for words in ("subscription t/s: ", "push_allow", "(2 of 3 steps are done.) (EndpointInvalid)"):
            assert words in result.err
