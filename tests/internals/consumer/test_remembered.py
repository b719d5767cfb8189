"""Ids of messages whose work is done."""

from veilmq.consumer.settling import HandledIds


def test_the_one_untouched_for_longest_is_forgotten() -> None:
    """Being asked for counts as a touch."""
    remembered = HandledIds(2)
    remembered.add("a")
    remembered.add("b")
    assert "a" in remembered
    remembered.add("c")
    assert "b" not in remembered
    assert "a" in remembered
    assert "c" in remembered
    assert len(remembered) == 2
