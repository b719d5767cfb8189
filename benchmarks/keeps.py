"""What a server keeps after `kill -9`: sends that it acknowledged, a SIGKILL, a restart, and a count.

SIGKILL leaves the page cache alone, so "everything acknowledged" here is no proof against power loss (the
crash tests are); "nothing" is proof enough.
"""

from benchmarks.bench import Bench, Place
from benchmarks.dialogue import DialogueError
from benchmarks.process import ServerError, running
from benchmarks.row import SUBJECT, Row, Section, failed
from benchmarks.servers import PEERS, VEILMQ, Server
from benchmarks.sqs import Sqs, SqsError

MESSAGES = 100
NOTHING = "nothing"
EVERYTHING = "everything acknowledged"
QUEUE = "keeps"


def measure(bench: Bench) -> Section:
    """One row: what each server still has."""
    bench.say("kept after kill -9 …")
    servers = (VEILMQ, *PEERS) if bench.peers else (VEILMQ,)
    values = {SUBJECT if server is VEILMQ else server.name: _kept(bench, server) for server in servers}
    row = Row(figure="kept after kill -9", unit=f"of {MESSAGES} acknowledged sends", values=values)
    return Section(name="kept after kill -9", rows=(row,))


def verdict(*, kept: int, acknowledged: int) -> str:
    """The words for `kept` of `acknowledged` messages."""
    if kept == 0:
        return NOTHING
    return EVERYTHING if kept >= acknowledged else f"{kept} of {acknowledged}"


def _kept(bench: Bench, server: Server) -> str:
    if missing := server.missing():
        return missing
    try:
        with bench.folder() as data:
            place = Place.fresh(server, data=data)
            _send_and_kill(place)
            with running(place.command):
                return verdict(kept=_count(place), acknowledged=MESSAGES)
    except (ServerError, SqsError, DialogueError, OSError) as failure:
        return failed(failure)


def _send_and_kill(place: Place) -> None:
    with running(place.command) as process, Sqs(port=place.port) as sqs:
        queue_url = sqs.create_queue(QUEUE)
        for n in range(MESSAGES):
            sqs.call("SendMessage", QueueUrl=queue_url, MessageBody=f"message {n}")
        process.kill()


def _count(place: Place) -> int:
    """Messages in the queue; none when the queue itself is gone."""
    with Sqs(port=place.port) as sqs:
        try:
            return sqs.messages(str(sqs.call("GetQueueUrl", QueueName=QUEUE)["QueueUrl"]))
        except SqsError as gone:
            if "NonExistentQueue" in str(gone) or "QueueDoesNotExist" in str(gone):
                return 0
            raise
