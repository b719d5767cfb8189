"""Names of queues in paths."""

import pytest

from tests.internals.wire.smq.asking import ACCOUNT, CONTEXT, request
from veilmq.wire.smq import SmqError
from veilmq.wire.smq.request import new_queue, queue_of, queue_url, says_fifo


@pytest.mark.parametrize("name", ["a", "9-a", "A" * 256, "orders.fifo"])
def test_a_queue_is_made_under_a_name_of_smq(name: str) -> None:
    """Letters, digits and hyphens, and the end by which SQS knows a FIFO queue."""
    assert new_queue(request("PUT", f"/queues/{name}"), CONTEXT) == f"{ACCOUNT}/{name}"


@pytest.mark.parametrize("name", ["-a", "a_b", "a.b", ".fifo", "a.fifo.b", "a%20b", "%C3%BC"])
def test_no_queue_is_made_under_another(name: str) -> None:
    """Wherever the wrong character stands."""
    with pytest.raises(SmqError, match="The queue name you provided is invalid"):
        new_queue(request("PUT", f"/queues/{name}"), CONTEXT)


def test_a_name_has_at_most_256_characters() -> None:
    """Whether a queue is made or looked for."""
    for find in (new_queue, queue_of):
        with pytest.raises(SmqError, match="between 1 and 256"):
            find(request("PUT", "/queues/" + "a" * 257), CONTEXT)


def test_a_queue_that_only_sqs_could_make_is_found() -> None:
    """Its name may hold what a listing shows, and nothing else."""
    assert queue_of(request("GET", "/queues/-a_b.fifo"), CONTEXT) == f"{ACCOUNT}/-a_b.fifo"
    with pytest.raises(SmqError):
        queue_of(request("GET", "/queues/a%2Fb"), CONTEXT)


def test_urls_are_under_the_address_that_was_asked() -> None:
    """In five parts between slashes, as one SDK counts them."""
    assert queue_url("q", CONTEXT) == "http://127.0.0.1:9324/queues/q"
    assert len(queue_url("q", CONTEXT).split("/")) == 5


def test_the_end_of_a_name_says_that_a_queue_is_fifo() -> None:
    """For SQS it is the only way to know."""
    assert says_fifo("a/b.fifo")
    assert not says_fifo("a/fifo")
