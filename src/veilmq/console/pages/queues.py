"""The list of queues."""

from starlette.responses import Response

from veilmq.console.page import Page
from veilmq.console.visit import Visit


async def show(visit: Visit) -> Response:
    """Show the queues of the account."""
    found = await visit.sqs("ListQueues", {"MaxResults": 1_000})
    queues = ["/".join(url.split("/")[-2:]) for url in found.get("QueueUrls", ())]
    return visit.page("queues.html", queues=queues)


PAGES = (Page("/console/queues", show),)
