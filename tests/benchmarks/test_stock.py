"""The budget that dialogues share, handles in answers, and a conversation over a socket with the ceiling."""

from collections.abc import Iterator

import pytest

from benchmarks.dialogue import Dialogue, DialogueError, converse, request
from benchmarks.process import Process, free_port, running
from benchmarks.servers import CEILING
from benchmarks.stock import EMPTY_MAX, Budget, first_handle, handles


def test_a_budget_is_taken_in_pieces_until_nothing_is_left() -> None:
    budget = Budget(left=25)
    assert [budget.take(10) for _ in range(4)] == [10, 10, 5, 0]


def test_what_was_not_moved_can_be_taken_again_but_not_for_ever() -> None:
    budget = Budget(left=0)
    budget.put_back(3)
    assert budget.take(10) == 3
    for _ in range(EMPTY_MAX - 1):
        budget.put_back(1)
    with pytest.raises(DialogueError, match="fewer messages than were waiting"):
        budget.put_back(1)


@pytest.mark.parametrize("separator", [":", ": "], ids=["compact", "spaced"])
def test_handles_are_found_however_the_server_spaces_its_answer(separator: str) -> None:
    answer = f'{{"Messages":[{{"ReceiptHandle"{separator}"one"}},{{"ReceiptHandle"{separator}"two"}}]}}'.encode()
    assert first_handle(answer) == b"one"
    assert handles(answer) == ["one", "two"]


@pytest.mark.parametrize("answer", [b"{}", b"", b'{"Messages":[]}'], ids=["object", "nothing", "list"])
def test_an_empty_answer_has_no_handle(answer: bytes) -> None:
    assert first_handle(answer) is None
    assert handles(answer) == []


@pytest.fixture
def ceiling_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    port = free_port()
    with running(CEILING.command(port, 0, tmp_path_factory.mktemp("ceiling"))) as process:
        assert isinstance(process, Process)
        yield port


def test_the_ceiling_answers_each_request_of_each_connection_once(ceiling_port: int) -> None:
    answers: list[bytes] = []

    def dialogue() -> Dialogue:
        for _ in range(5):
            answer = yield request("SendMessage", MessageBody="x" * 70_000)
            answers.append(answer)

    assert converse(port=ceiling_port, dialogues=[dialogue() for _ in range(3)], timeout_s=30.0) > 0
    assert answers == [b"{}"] * 15
