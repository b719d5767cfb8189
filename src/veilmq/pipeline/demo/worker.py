"""A worker of the demonstration, a process of its own: ``… worker ENDPOINT NUMBER THREADS DONE QUEUE…``.

Each thread receives a message, works for the time in its body, sends a message to the queue ``DONE``, and deletes the
received one. With several queues a thread starts with one of them and takes from the others when that is empty.
"""

import signal
import sys
import threading
import time
from collections.abc import Sequence

import msgspec

from veilmq.client import ClientError, HttpQueueClient, ReceivedMessage, Unreachable
from veilmq.pipeline.demo.kinds import Done, Work

IDLE_S = 1


class Worker:
    """Shared by the threads of one worker."""

    def __init__(self, *, endpoint: str, number: int, done: str, queues: Sequence[str]) -> None:
        """Connect to nothing yet."""
        self._endpoint, self._number = endpoint, number
        self._done, self._queues = done, list(queues)
        self.stop = threading.Event()

    def run(self, place: int) -> None:
        """Work until ``stop`` is set; a message that was received is finished."""
        own = place % len(self._queues)
        queues = [*self._queues[own:], *self._queues[:own]]
        with HttpQueueClient(self._endpoint) as client:
            while not self.stop.is_set():
                try:
                    self._once(client, queues)
                except (ClientError, Unreachable):
                    self.stop.wait(IDLE_S)  # the server is busy or starting; the message is delivered again

    def _once(self, client: HttpQueueClient, queues: list[str]) -> None:
        """Do one piece of work from the first queue that has a message; wait for one at the first queue."""
        helping = [(queue, 0) for queue in queues] if len(queues) > 1 else []
        for queue, wait_s in [*helping, (queues[0], IDLE_S)]:
            for message in client.receive(queue, wait_s=wait_s):
                self._do(client, queue, message)
                return

    def _do(self, client: HttpQueueClient, queue: str, message: ReceivedMessage) -> None:
        work = msgspec.json.decode(message.body, type=Work)
        time.sleep(work.seconds)
        done = Done(number=work.number, kind=work.kind, attempt=message.receive_count, worker=self._number)
        client.send(self._done, msgspec.json.encode(done).decode())
        client.delete(queue, message.receipt)


def main(arguments: Sequence[str]) -> None:
    """Run a worker until SIGTERM."""
    endpoint, number, threads, done, *queues = arguments
    worker = Worker(endpoint=endpoint, number=int(number), done=done, queues=queues)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop.set())
    running = [threading.Thread(target=worker.run, args=(place,)) for place in range(int(threads))]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1:])
