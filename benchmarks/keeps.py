"""What a server keeps after `kill -9`: acknowledged sends, a SIGKILL, a restart, and a count.

SIGKILL keeps the page cache, so "everything acknowledged" does not prove anything about power loss (the crash tests
do); "nothing" is conclusive.
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
    """Return one row: the count of each server."""
    bench.log("kept after kill -9 …")
    servers = (VEILMQ, *PEERS) if bench.peers else (VEILMQ,)
    values = {SUBJECT if server is VEILMQ else server.name: _kept(bench, server) for server in servers}
    row = Row(figure="kept after kill -9", unit=f"of {MESSAGES} acknowledged sends", values=values)
    return Section(name="kept after kill -9", rows=(row,))


def verdict(*, kept: int, acknowledged: int) -> str:
    """Describe `kept` of `acknowledged` messages."""
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
    """Return the number of messages in the queue; 0 if the queue no longer exists."""
    with Sqs(port=place.port) as sqs:
        try:
            return sqs.messages(str(sqs.call("GetQueueUrl", QueueName=QUEUE)["QueueUrl"]))
        except SqsError as error:
            if "NonExistentQueue" in str(error) or "QueueDoesNotExist" in str(error):
                return 0
            raise
