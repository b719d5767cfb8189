"""Creating queues and changing them, over real sockets: what is typed is there, and an error changes nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.forms import form_of
from tests.console.visitor import Seen, Visitor
from tests.server.keys import OWNER, REGION, SECRETS, client, written
from veilmq.client.api import Settings
from veilmq.core.settings import QueueSettings
from veilmq.testing import RunningServer

NEW = "/console/queues/new"
ACCOUNT = "000000000000"
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One server; each test has queues of its own."""
    with RunningServer() as running:
        yield running


def edit(name: str) -> str:
    """Return the path of the page that changes a queue."""
    return f"/console/queues/{ACCOUNT}/{name}/edit"


def fill(visitor: Visitor, path: str, **typed: str) -> Seen:
    """Open the form at ``path``, type over some of its fields (``__`` stands for a dot) and send it."""
    form = form_of(visitor.get(path).html, path)
    given = {name.replace("__", "."): text for name, text in typed.items()}
    assert given.keys() <= form.keys()
    return visitor.send(path, form | given)


def settings_of(server: RunningServer, name: str) -> QueueSettings:
    """Return what a queue is set to."""
    with Settings(server.endpoint, name) as settings:
        return settings.show().settings


def is_there(server: RunningServer, name: str) -> bool:
    """Tell whether there is a queue of that name."""
    return any(url.endswith(f"/{name}") for url in client(server).list_queues().get("QueueUrls", ()))


def test_a_queue_is_made_as_it_was_filled_in(server: RunningServer, visitor: Visitor) -> None:
    seen = fill(visitor, NEW, name="made", visibility_timeout_s="45", tag__0__key="team", tag__0__value="a")
    assert (seen.status, seen.path) == (200, f"/console/queues/{ACCOUNT}/made?done=created")
    assert "The queue was created." in seen.text
    assert settings_of(server, "made") == QueueSettings(visibility_timeout_s=45, tags={"team": "a"})


def test_every_setting_can_be_filled_in(server: RunningServer, visitor: Visitor) -> None:
    """Of a FIFO queue, in the widest ranges; and each can be changed again."""
    fill(visitor, NEW, name="all-failed", fifo="yes")
    policy = json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}]}, indent=1)
    rules = '{"version": 1, "classes": [{"name": "slow", "visibility_timeout_s": 600}], "default": 0}'
    typed = {
        "visibility_timeout_s": "43200",
        "delay_s": "604800",
        "retention_s": "1209600",
        "receive_wait_s": "30",
        "visibility_rules": rules,
        "fifo": "yes",
        "content_deduplication": "yes",
        "deduplication_scope": "group",
        "throughput_limit": "group",
        "dead_letter_queue": "all-failed",
        "receives_max": "1000",
        "redrive_permission": "listed",
        "redrive_sources": "one\ntwo",
        "message_bytes_max": "1024",
        "in_flight_max": "7",
        "receives_per_s_max": "1000000",
        "policy": policy,
        "managed_encryption": "no",
        "kms_key": "alias/key",
        "kms_data_key_reuse_s": "60",
        "event_log": "closed",
        "smq_base64": "yes",
        "operations_logged": "yes",
    }
    seen = fill(visitor, NEW, name="all", **typed)
    assert seen.status == 200, seen.text
    assert settings_of(server, "all") == QueueSettings(
        visibility_timeout_s=43_200,
        delay_s=604_800,
        retention_s=1_209_600,
        receive_wait_s=30,
        visibility_rules=rules,
        fifo=True,
        content_deduplication=True,
        deduplication_scope="group",
        throughput_limit="group",
        dead_letter_queue=f"{ACCOUNT}/all-failed",
        receives_max=1_000,
        redrive_permission="listed",
        redrive_sources=(f"{ACCOUNT}/one", f"{ACCOUNT}/two"),
        message_bytes_max=1_024,
        in_flight_max=7,
        receives_per_s_max=1_000_000,
        policy=policy,
        managed_encryption=False,
        kms_key="alias/key",
        kms_data_key_reuse_s=60,
        event_log="closed",
        smq_base64=True,
        operations_logged=True,
    )
    assert "all-failed" in seen.html
    assert fill(visitor, edit("all")).path.endswith("?done=unchanged")
    back = form_of(visitor.get(NEW).html, NEW)
    del back["fifo"], back["csrf"], back["name"]
    typed_back = {name.replace(".", "__"): text for name, text in back.items() if name.partition(".")[0] in typed}
    assert fill(visitor, edit("all"), **typed_back).path.endswith("?done=saved")
    assert settings_of(server, "all") == QueueSettings(fifo=True)


@pytest.mark.parametrize(
    ("field", "typed", "said"),
    [
        ("visibility_timeout_s", "43201", "This must be 0 to 43,200 seconds."),
        ("visibility_timeout_s", "soon", "This must be a whole number, 0 to 43,200 seconds."),
        ("name", "a b", "This cannot be a name."),
        ("name", "", "This cannot be a name."),
        ("name", f"{SCRIPT}?", "This cannot be a name."),
        ("name", "ends.fifo", "A name that ends in .fifo is for FIFO queues"),
        ("name", "a_" * 60, "A name has up to 80 letters"),
        ("throughput_limit", "group", "Only FIFO queues have a throughput limit of their own"),
        ("receives_max", "3", "go together; give both or neither"),
        ("redrive_sources", "a/b", "must be the name of a queue of the account"),
        ("policy", "{", "Invalid value for the parameter policy"),
        ("visibility_rules", SCRIPT, "The visibility rules are no routing table"),
        ("tag.0.key", "<b>", "A tag's key has 1 to 128 characters"),
    ],
)
def test_what_cannot_be_stays_in_the_form(
    server: RunningServer, visitor: Visitor, field: str, typed: str, said: str
) -> None:
    """It is said beside the field, everything stays as it was typed, and no queue is made."""
    form = form_of(visitor.get(NEW).html, NEW) | {"name": "wrong", "delay_s": "77", field: typed}
    seen = visitor.send(NEW, form)
    assert seen.status in {400, 422}
    assert said in seen.text
    assert seen.text.index("Nothing was changed. To correct:") < seen.text.index(said)
    assert 'aria-invalid="true"' in seen.html or 'id="tags-problem"' in seen.html
    again = form_of(seen.html, NEW)
    assert (again["delay_s"], again[field]) == ("77", typed)
    assert SCRIPT not in seen.html
    assert not is_there(server, form["name"] or "wrong")


def test_errors_of_several_fields_are_told_at_once(visitor: Visitor) -> None:
    seen = fill(visitor, NEW, name="several", delay_s="-1", retention_s="1", tag__0__value="no key")
    for said in ("0 to 604,800", "60 to 1,209,600", "A value needs a key"):
        assert said in seen.text
    for field in ("delay_s", "retention_s", "tags"):
        assert f'href="#{field}"' in seen.html


def test_a_dead_letter_queue_that_is_not_there_is_said_beside_its_field(visitor: Visitor) -> None:
    seen = fill(visitor, NEW, name="lost", dead_letter_queue="nowhere", receives_max="2")
    assert seen.status == 400
    assert 'id="dead_letter_queue-problem"' in seen.html


def test_a_name_is_given_once(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="twice", delay_s="1")
    for typed in ({}, {"delay_s": "2"}):
        seen = fill(visitor, NEW, name="twice", **typed)
        assert seen.status == 409
        assert 'id="name-problem"' in seen.html
    assert settings_of(server, "twice").delay_s == 1


def test_only_what_was_changed_is_sent(server: RunningServer, visitor: Visitor) -> None:
    """Two people change different settings at once, and both hold; the same one, and the second is asked."""
    fill(visitor, NEW, name="shared")
    path = edit("shared")
    first, second = (form_of(visitor.get(path).html, path) for _ in range(2))
    assert visitor.send(path, first | {"visibility_timeout_s": "45"}).path.endswith("?done=saved")
    assert visitor.send(path, second | {"delay_s": "5"}).path.endswith("?done=saved")
    assert settings_of(server, "shared") == QueueSettings(visibility_timeout_s=45, delay_s=5)
    seen = visitor.send(path, second | {"visibility_timeout_s": "60"})
    assert seen.status == 422
    assert "Somebody has changed this since you opened the page, to: 45 seconds" in seen.text
    assert settings_of(server, "shared").visibility_timeout_s == 45
    visitor.send(path, form_of(seen.html, path))
    assert settings_of(server, "shared") == QueueSettings(visibility_timeout_s=60, delay_s=5)


def test_tags_are_set_and_removed(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="tagged", tag__0__key="a", tag__0__value="1", tag__1__key="b", tag__1__value="2")
    fill(
        visitor,
        edit("tagged"),
        tag__0__value="3",
        tag__1__key="",
        tag__1__value="",
        tag__2__key="c=d",
        tag__2__value="e",
    )
    assert settings_of(server, "tagged").tags == {"a": "3", "c=d": "e"}


def test_a_wrong_value_changes_nothing(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="kept")
    for typed in ({"receive_wait_s": "31"}, {"receives_max": "2"}, {"tag__0__key": "aws:x"}):
        seen = fill(visitor, edit("kept"), delay_s="9", **typed)
        assert seen.status in {400, 422}
        assert form_of(seen.html, edit("kept"))["delay_s"] == "9"
    assert settings_of(server, "kept") == QueueSettings()


def test_markup_stays_text(visitor: Visitor) -> None:
    """In a policy, the one text that may have any, on the page and in the form."""
    policy = json.dumps({"Id": f'"{SCRIPT}', "Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}})
    assert fill(visitor, NEW, name="marked", policy=policy).status == 200
    page, form = visitor.get(f"/console/queues/{ACCOUNT}/marked"), visitor.get(edit("marked"))
    assert "<script>alert" not in page.html + form.html
    assert SCRIPT in page.text
    assert form_of(form.html, edit("marked"))["policy"] == policy


def test_nothing_is_taken_without_the_token(server: RunningServer, visitor: Visitor) -> None:
    fill(visitor, NEW, name="guarded")
    for path in (NEW, edit("guarded")):
        form = form_of(visitor.get(path).html, path) | {"name": "forged", "delay_s": "9"}
        assert visitor.send(path, form | {"csrf": "no"}).status == 403
    assert not is_there(server, "forged")
    assert settings_of(server, "guarded").delay_s == 0


def test_there_is_no_form_of_a_queue_that_is_not_there(visitor: Visitor) -> None:
    for name in ("nowhere", "a b?c"):
        assert (
            visitor.get(f"/console/queues/{ACCOUNT}/{name}/edit".replace(" ", "%20").replace("?", "%3F")).status == 404
        )


def test_whoever_may_only_see_changes_nothing(tmp_path: Path) -> None:
    """The form is there, and says that it was refused; nothing is lost of what was typed."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        sqs = client(server)
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        allowed = {"Effect": "Allow", "Principal": "*", "Action": "sqs:Get*"}
        denied = {"Effect": "Deny", "Principal": "*", "Action": "sqs:TagQueue"}
        policy = json.dumps({"Statement": [allowed, denied]})
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        path = f"/console/queues/{OWNER}/jobs/edit"
        with Visitor(server, key=("AKIDFRIEND", SECRETS["AKIDFRIEND"])) as friend:
            seen = fill(friend, path, delay_s="9")
            assert (seen.status, form_of(seen.html, path)["delay_s"]) == (403, "9")
            assert "is not authorized to perform: sqs:setqueueattributes" in seen.text
        with Visitor(server, key=("AKIDOWNER", SECRETS["AKIDOWNER"])) as owner:
            seen = fill(owner, path, delay_s="9", tag__0__key="k")
            assert seen.status == 403
            assert "The settings were changed, the tags were not." in seen.text
            assert form_of(seen.html, path)["tag.0.key"] == "k"
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["DelaySeconds"])["Attributes"]
        assert attributes["DelaySeconds"] == "9"
