"""What an address says about a list of queues, and the addresses of its neighbours."""

import pytest

from veilmq.console.feeds import figures
from veilmq.console.listing import COLUMNS, SIZE_DEFAULT, Column, Listing
from veilmq.core.commands import BrowsedQueue, QueueOrder

NAME, VISIBLE = COLUMNS[0], COLUMNS[1]


def test_an_address_leads_back_to_its_listing() -> None:
    listing = Listing(search="a&b=é", order=QueueOrder.OLDEST, descending=True, page=3, size=100)
    assert listing.address == "/console/queues?search=a%26b%3D%C3%A9&sort=oldest&descending=true&page=3&size=100"
    query = {"search": "a&b=é", "sort": "oldest", "descending": "true", "page": "3", "size": "100"}
    assert Listing.of(query) == listing
    assert Listing.of({}).address == "/console/queues"


@pytest.mark.parametrize(
    "query",
    [
        {"page": "0", "size": "7", "sort": "policy", "descending": "1"},
        {"page": "-1", "size": "", "sort": ""},
        {"page": "٣", "size": "9" * 400},
        {"page": "9" * 400},
        {"search": "  "},
    ],
)
def test_what_an_address_says_wrongly_counts_as_not_said(query: dict[str, str]) -> None:
    assert Listing.of(query) == Listing()


def test_a_search_is_as_long_as_a_name() -> None:
    assert len(Listing.of({"search": "x" * 1_000}).search) == 256


def test_pages_are_of_their_size() -> None:
    listing = Listing(page=3, size=25)
    assert listing.asked == {"search": "", "sort": "name", "descending": "false", "first": 50, "count": 25}
    assert listing.at(4) == "/console/queues?page=4&size=25"
    assert Listing().asked["count"] == SIZE_DEFAULT


@pytest.mark.parametrize(
    ("listing", "column", "address", "direction"),
    [
        (Listing(), NAME, "?descending=true", "ascending"),
        (Listing(descending=True), NAME, "", "descending"),
        (Listing(page=4), VISIBLE, "?sort=visible&descending=true", "none"),
        (Listing(order=QueueOrder.VISIBLE, descending=True), VISIBLE, "?sort=visible", "descending"),
        (Listing(order=QueueOrder.VISIBLE), NAME, "", "none"),
        (Listing(search="x", size=25), VISIBLE, "?search=x&sort=visible&descending=true&size=25", "none"),
    ],
)
def test_a_column_sorts_and_then_the_other_way_round(
    listing: Listing, column: Column, address: str, direction: str
) -> None:
    assert listing.sorted_by(column) == f"/console/queues{address}"
    assert listing.direction(column) == direction


def test_every_order_has_a_column() -> None:
    assert [column.order for column in COLUMNS] == list(QueueOrder)


def test_every_figure_has_its_column_in_its_place() -> None:
    assert [column.order.value for column in COLUMNS[1:]] == list(figures(BrowsedQueue(name="q"), 0))
