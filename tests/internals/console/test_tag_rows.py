"""Tags in forms: rows of keys and values, of which only what was changed is sent."""

from veilmq.console.tag_rows import filled_tags, rows_of, was
from veilmq.core.limits import SQS_TAGS_MAX

PRESENT = {"team": "a", "a=b": "c d"}


def form(tags: dict[str, str], *typed: tuple[str, str]) -> dict[str, str]:
    """Return the form that was opened with ``tags`` and has the rows ``typed`` now."""
    fields = {"was.tags": was(tags)}
    for number, (key, value) in enumerate(typed):
        fields |= {f"tag.{number}.key": key, f"tag.{number}.value": value}
    return fields


def test_there_is_room_for_further_ones() -> None:
    assert rows_of(PRESENT) == [("team", "a"), ("a=b", "c d"), ("", ""), ("", ""), ("", "")]
    full = {str(number): "" for number in range(SQS_TAGS_MAX)}
    assert rows_of(full) == list(full.items())


def test_a_form_that_nobody_changed_asks_for_nothing() -> None:
    found = filled_tags(form(PRESENT, *rows_of(PRESENT)), PRESENT)
    assert (found.put, found.removed, found.problem) == ({}, [], "")


def test_a_form_without_tags_leaves_them() -> None:
    assert filled_tags({}, PRESENT).rows == rows_of(PRESENT)


def test_only_changes_are_sent() -> None:
    found = filled_tags(form(PRESENT, ("team", "b"), ("", ""), ("new", "")), PRESENT)
    assert (found.put, found.removed, found.problem) == ({"team": "b", "new": ""}, ["a=b"], "")


def test_what_others_tagged_meanwhile_stays() -> None:
    found = filled_tags(form(PRESENT, ("team", "b"), ("a=b", "c d")), PRESENT | {"other": "x"})
    assert (found.put, found.removed, found.problem) == ({"team": "b"}, [], "")


def test_what_both_changed_is_asked_about() -> None:
    found = filled_tags(form(PRESENT, ("team", "b"), ("a=b", "c d")), PRESENT | {"team": "z"})
    assert found.problem.startswith("team: Somebody has changed this")


def test_a_key_stands_once() -> None:
    found = filled_tags(form({}, ("k", "1"), ("k", "2")), {})
    assert "The key k is there twice" in found.problem
    assert found.rows[:2] == [("k", "1"), ("k", "2")]


def test_a_value_needs_a_key() -> None:
    found = filled_tags(form(PRESENT, ("team", "a"), ("", "c d")), PRESENT)
    assert found.problem == "A value needs a key; to remove a tag, empty both."
    assert found.rows[1] == ("", "c d")


def test_what_cannot_be_a_tag_is_said_before_anything_is_changed() -> None:
    assert "A tag's key has 1 to 128 characters" in filled_tags(form({}, ("<b>", "1")), {}).problem
    assert "A tag's value has up to 256 characters" in filled_tags(form({}, ("k", "<b>")), {}).problem
    assert "does not begin with aws:" in filled_tags(form({}, ("aws:k", "")), {}).problem


def test_a_form_whose_memory_is_broken_is_compared_with_what_is_there() -> None:
    found = filled_tags(form(PRESENT, ("team", "b")) | {"was.tags": "{"}, PRESENT)
    assert (found.put, found.removed) == ({"team": "b"}, ["a=b"])
