"""The pages of one queue: counts, settings, addresses, permissions, and creating, changing and deleting it."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.visitor import Seen, Visitor, form_of
from tests.server.keys import OWNER, REGION, client, written
from veilmq.client import HttpQueueClient
from veilmq.client.api import Settings
from veilmq.core.settings import QueueSettings
from veilmq.testing import RunningServer

ACCOUNT = "000000000000"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with accounts, and a queue with a message, whose settings another account may see."""
    keys = written(tmp_path_factory.mktemp("keys") / "keys.toml")
    with RunningServer(credentials=keys, region=REGION) as running:
        sqs = client(running)
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="m")
        allowed = {"Effect": "Allow", "Principal": "*", "Action": "sqs:GetQueueAttributes"}
        denied = {"Effect": "Deny", "Principal": "*", "Action": "sqs:TagQueue"}
        policy = json.dumps({"Statement": [allowed, denied]})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        yield running


def path_of(name: str, page: str = "") -> str:
    return f"/console/queues/{ACCOUNT}/{name}{page}"


def test_the_page_has_counts_and_rates(server: RunningServer, visitor: Visitor, queues: HttpQueueClient) -> None:
    queues.create_queue("counted")
    for number in range(3):
        queues.send("counted", f"m{number}")
    queues.send("counted", "later", delay_s=60)
    queues.receive("counted")
    first = visitor.get(path_of("counted"))
    queues.send("counted", "m")
    server.advance(10_000)
    seen = visitor.get(path_of("counted"))
    assert "Visible 2 In flight 1 Delayed 1 Oldest 0 s Sent/s – " in first.text
    assert "Visible 3 In flight 1 Delayed 1 Oldest 10 s Sent/s 0.1 Received/s 0.0 Deleted/s 0.0" in seen.text


def test_the_page_has_settings_with_their_units(visitor: Visitor, queues: HttpQueueClient) -> None:
    queues.create_queue("shown", {"visibility_timeout_s": 5_400, "delay_s": 1}, tags={"team": "a + b"})
    text = visitor.get(path_of("shown")).text
    for words in ("Visibility timeout 5,400 seconds (1 h 30 min)", "Delay 1 second ", "Kind standard", "team a + b"):
        assert words in text
    assert "Deduplication scope" not in text


def test_the_page_has_the_addresses_of_the_queue(server: RunningServer, visitor: Visitor) -> None:
    url = server.queue("reached").url
    text = visitor.get(path_of("reached")).text
    assert f"URL (SQS) {url} ARN arn:aws:sqs:us-east-1:{ACCOUNT}:reached" in text
    assert f"Name (SMQ) reached URL (SMQ) {server.endpoint}/queues/reached" in text


def test_source_and_dead_letter_queue_link_to_each_other(server: RunningServer, visitor: Visitor) -> None:
    server.queue("failed")
    server.queue("source", dead_letter_queue="failed", receives_max=3)
    assert f'<a href="{path_of("failed")}">failed</a>' in visitor.get(path_of("source")).html
    assert f'<a href="{path_of("source")}">source</a>' in visitor.get(path_of("failed")).html
    assert "No queue uses this one" in visitor.get(path_of("source")).text
    seen = visitor.get(path_of("failed", "/delete"))
    assert "These queues use it as their dead-letter queue" in seen.text
    assert f'href="{path_of("source")}"' in seen.html


def test_the_navigation_marks_the_current_page(server: RunningServer, visitor: Visitor) -> None:
    server.queue("about")
    for page in ("", "/edit", "/purge", "/delete"):
        target = path_of("about", page)
        assert f'<a href="{target}" aria-current="page">' in visitor.get(target).html


@pytest.mark.parametrize("path", ["queues/000000000000/a%20b/messages", "claims/shop/jobs"])
def test_an_address_that_no_queue_can_have_is_an_unknown_page(visitor: Visitor, path: str) -> None:
    seen = visitor.get(f"/console/{path}")
    assert (seen.status, "Page not found" in seen.text) == (404, True)


def test_the_page_hides_only_what_the_user_may_not_see(theirs: RunningServer) -> None:
    with Visitor(theirs, key="AKIDFRIEND") as friend:
        seen = friend.get(f"/console/queues/{OWNER}/jobs")
    assert seen.status == 200
    assert "You may not see which queues use this one" in seen.text
    assert re.search("Visible 1 In flight 0 Delayed 0 Oldest .* Sent/s – ", seen.text), seen.text[:600]


# Creating and changing queues.


NEW = "/console/queues/new"
SCRIPT = "<script>alert(1)</script>"


def fill(visitor: Visitor, path: str, **typed: str) -> Seen:
    """Open the form at ``path``, change some fields (``__`` stands for a dot) and submit it."""
    form = form_of(visitor.get(path).html, path)
    given = {name.replace("__", "."): text for name, text in typed.items()}
    assert given.keys() <= form.keys()
    return visitor.send(path, form | given)


def settings_of(server: RunningServer, name: str) -> QueueSettings:
    with Settings(server.endpoint, name) as settings:
        return settings.show().settings


def is_there(server: RunningServer, name: str) -> bool:
    return any(url.endswith(f"/{name}") for url in client(server).list_queues().get("QueueUrls", ()))


def test_a_queue_is_created_with_the_entered_settings(server: RunningServer, visitor: Visitor) -> None:
    seen = fill(visitor, NEW, name="made", visibility_timeout_s="45", tag__0__key="team", tag__0__value="a")
    assert (seen.status, seen.path) == (200, path_of("made", "?done=created"))
    assert "The queue was created." in seen.text
    assert settings_of(server, "made") == QueueSettings(visibility_timeout_s=45, tags={"team": "a"})


def test_every_setting_has_a_field(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="all-failed", fifo="yes")
    policy = json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}]}, indent=1)
    rules = '{"version": 1, "classes": [{"name": "slow", "visibility_timeout_s": 600}], "default": 0}'
    same: dict[str, Any] = {"deduplication_scope": "group", "throughput_limit": "group", "event_log": "closed"}
    same |= {"visibility_rules": rules, "policy": policy, "redrive_permission": "listed", "kms_key": "alias/key"}
    numbers: dict[str, Any] = {"visibility_timeout_s": 43_200, "delay_s": 604_800, "retention_s": 1_209_600}
    numbers |= {"receive_wait_s": 30, "receives_max": 1_000, "message_bytes_max": 1_024, "in_flight_max": 7}
    numbers |= {"receives_per_s_max": 1_000_000, "kms_data_key_reuse_s": 60}
    switches: dict[str, Any] = dict.fromkeys(("fifo", "content_deduplication", "smq_base64", "operations_logged"), True)
    switches |= {"managed_encryption": False}
    names = {"dead_letter_queue": "all-failed", "redrive_sources": "one\ntwo"}
    typed = {**same, **names} | {name: str(number) for name, number in numbers.items()}
    typed |= {name: "yes" if on else "no" for name, on in switches.items()}
    seen = fill(visitor, NEW, name="all", **typed)
    assert seen.status == 200, seen.text
    assert settings_of(server, "all") == QueueSettings(
        **same,
        **numbers,
        **switches,
        dead_letter_queue=f"{ACCOUNT}/all-failed",
        redrive_sources=(f"{ACCOUNT}/one", f"{ACCOUNT}/two"),
    )
    assert "all-failed" in seen.html
    assert fill(visitor, path_of("all", "/edit")).path.endswith("?done=unchanged")
    back = form_of(visitor.get(NEW).html, NEW)
    del back["fifo"], back["csrf"], back["name"]
    typed_back = {name.replace(".", "__"): text for name, text in back.items() if name.partition(".")[0] in typed}
    assert fill(visitor, path_of("all", "/edit"), **typed_back).path.endswith("?done=saved")
    assert settings_of(server, "all") == QueueSettings(fifo=True)


@pytest.mark.parametrize(
    ("field", "typed", "error"),
    [
        ("visibility_timeout_s", "43201", "This must be 0 to 43,200 seconds."),
        ("visibility_timeout_s", "soon", "This must be a whole number, 0 to 43,200 seconds."),
        ("name", "a b", "Queue names may contain only letters, digits, hyphens and underscores."),
        ("name", "", "This field is required."),
        ("name", f"{SCRIPT}?", "Queue names may contain only letters, digits, hyphens and underscores."),
        ("name", "ends.fifo", "A name that ends in .fifo is for FIFO queues"),
        ("name", "a_" * 60, "A name has up to 80 letters"),
        ("throughput_limit", "group", "Only FIFO queues have a throughput limit of their own"),
        ("receives_max", "3", "belong together; give both or neither"),
        ("redrive_sources", "a/b", "must be the name of a queue of the account"),
        ("policy", "{", "Invalid value for the parameter policy"),
        ("visibility_rules", SCRIPT, "The visibility rules are not a routing table"),
        ("tag.0.key", "<b>", "A tag's key has 1 to 128 characters"),
    ],
)
def test_an_invalid_setting_stays_in_the_form(
    server: RunningServer, visitor: Visitor, field: str, typed: str, error: str
) -> None:
    form = form_of(visitor.get(NEW).html, NEW) | {"name": "wrong", "delay_s": "77", field: typed}
    seen = visitor.send(NEW, form)
    assert seen.status in {400, 422}
    assert error in seen.text
    assert seen.text.index("Not saved. Please fix:") < seen.text.index(error)
    assert 'aria-invalid="true"' in seen.html or 'id="tags-problem"' in seen.html
    again = form_of(seen.html, NEW)
    assert (again["delay_s"], again[field]) == ("77", typed)
    assert SCRIPT not in seen.html
    assert not is_there(server, form["name"] or "wrong")


def test_every_invalid_field_has_an_error(visitor: Visitor) -> None:
    seen = fill(visitor, NEW, name="several", delay_s="-1", retention_s="1", tag__0__value="no key")
    for error in ("0 to 604,800", "60 to 1,209,600", "A value needs a key"):
        assert error in seen.text
    for field in ("delay_s", "retention_s", "tags"):
        assert f'href="#{field}"' in seen.html
    seen = fill(visitor, NEW, name="lost", dead_letter_queue="nowhere", receives_max="2")
    assert (seen.status, 'id="dead_letter_queue-problem"' in seen.html) == (400, True)


def test_an_existing_name_is_an_error(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="twice", delay_s="1")
    for typed in ({}, {"delay_s": "2"}):
        seen = fill(visitor, NEW, name="twice", **typed)
        assert seen.status == 409
        assert 'id="name-problem"' in seen.html
    assert settings_of(server, "twice").delay_s == 1


def test_a_form_changes_only_its_changed_fields(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="shared")
    path = path_of("shared", "/edit")
    first, second = (form_of(visitor.get(path).html, path) for _ in range(2))
    assert visitor.send(path, first | {"visibility_timeout_s": "45"}).path.endswith("?done=saved")
    assert visitor.send(path, second | {"delay_s": "5"}).path.endswith("?done=saved")
    assert settings_of(server, "shared") == QueueSettings(visibility_timeout_s=45, delay_s=5)
    seen = visitor.send(path, second | {"visibility_timeout_s": "60"})
    assert seen.status == 422
    assert "Another user has changed this since you opened the page, to: 45 seconds" in seen.text
    assert settings_of(server, "shared").visibility_timeout_s == 45
    visitor.send(path, form_of(seen.html, path))
    assert settings_of(server, "shared") == QueueSettings(visibility_timeout_s=60, delay_s=5)


def test_tags_are_changed_and_removed(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="tagged", tag__0__key="a", tag__0__value="1", tag__1__key="b", tag__1__value="2")
    typed = {"tag__0__value": "3", "tag__1__key": "", "tag__1__value": "", "tag__2__key": "c=d", "tag__2__value": "e"}
    fill(visitor, path_of("tagged", "/edit"), **typed)
    assert settings_of(server, "tagged").tags == {"a": "3", "c=d": "e"}


def test_an_invalid_value_changes_no_setting(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="kept")
    for typed in ({"receive_wait_s": "31"}, {"receives_max": "2"}, {"tag__0__key": "aws:x"}):
        seen = fill(visitor, path_of("kept", "/edit"), delay_s="9", **typed)
        assert seen.status in {400, 422}
        assert form_of(seen.html, path_of("kept", "/edit"))["delay_s"] == "9"
    assert settings_of(server, "kept") == QueueSettings()


def test_markup_in_settings_is_escaped(visitor: Visitor) -> None:
    policy = json.dumps({"Id": f'"{SCRIPT}', "Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}})
    assert fill(visitor, NEW, name="marked", policy=policy).status == 200
    page, form = visitor.get(path_of("marked")), visitor.get(path_of("marked", "/edit"))
    assert "<script>alert" not in page.html + form.html
    assert SCRIPT in page.text
    assert form_of(form.html, path_of("marked", "/edit"))["policy"] == policy


def test_a_forbidden_change_stays_in_the_form(theirs: RunningServer) -> None:
    path = f"/console/queues/{OWNER}/jobs/edit"
    with Visitor(theirs, key="AKIDFRIEND") as friend:
        seen = fill(friend, path, delay_s="9")
        assert (seen.status, form_of(seen.html, path)["delay_s"]) == (403, "9")
        assert "is not authorized to perform: sqs:setqueueattributes" in seen.text
    with Visitor(theirs, key="AKIDOWNER") as owner:
        seen = fill(owner, path, delay_s="9", tag__0__key="k")
        assert seen.status == 403
        assert "The settings were changed, the tags were not." in seen.text
        assert form_of(seen.html, path)["tag.0.key"] == "k"
    assert attribute(theirs, "DelaySeconds") == "9"


def attribute(server: RunningServer, name: str) -> str:
    url = f"{server.endpoint}/{OWNER}/jobs"
    found = client(server).get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"]
    return str(found[name])


# Purging and deleting queues, which require the queue's name.


def test_the_page_purges_a_queue(visitor: Visitor, queues: HttpQueueClient) -> None:
    path = with_messages(queues, "purged")
    assert "Visible 2" in visitor.get(f"{path}/purge").text
    seen = visitor.post(f"{path}/purge", confirmation=" purged ")
    assert seen.path == f"{path}?done=purged"
    assert "All messages of the queue were deleted." in seen.text
    assert queues.show("purged").visible == 0
    again = visitor.post(f"{path}/purge", confirmation="purged")
    assert (again.status, "Only one PurgeQueue operation" in again.text) == (403, True)


def with_messages(queues: HttpQueueClient, name: str) -> str:
    """Create a queue with two messages; return the path of its page."""
    queues.create_queue(name)
    queues.send(name, "a")
    queues.send(name, "b")
    return path_of(name)


def test_the_page_deletes_a_queue(visitor: Visitor, queues: HttpQueueClient) -> None:
    path = with_messages(queues, "deleted")
    assert visitor.post(f"{path}/delete", confirmation="deleted").path == "/console/queues?done=deleted"
    assert visitor.get(path).status == visitor.get(f"{path}/delete").status == 404


@pytest.mark.parametrize("action", ["purge", "delete"])
def test_purging_and_deleting_require_the_name_of_the_queue(
    visitor: Visitor, queues: HttpQueueClient, action: str
) -> None:
    path = with_messages(queues, f"kept-{action}")
    for typed in (None, "", "Kept", path.removeprefix("/console"), "<script>"):
        fields: dict[str, Any] = {} if typed is None else {"confirmation": typed}
        seen = visitor.post(f"{path}/{action}", **fields)
        assert seen.status == 422
        assert "This is not the queue's name, so nothing was deleted." in seen.text
        assert 'aria-invalid="true"' in seen.html
    assert queues.show(f"kept-{action}").visible == 2


@pytest.mark.parametrize("action", ["purge", "delete"])
def test_purging_and_deleting_need_their_permissions(theirs: RunningServer, action: str) -> None:
    with Visitor(theirs, key="AKIDFRIEND") as friend:
        seen = friend.post(f"/console/queues/{OWNER}/jobs/{action}", confirmation="jobs")
    assert (seen.status, f"sqs:{action}queue" in seen.text) == (403, True)
    assert attribute(theirs, "ApproximateNumberOfMessages") == "1"
