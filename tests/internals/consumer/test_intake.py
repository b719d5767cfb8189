"""Polls: as many as there is room for, one while it is quiet, and pauses after failures."""

import asyncio
from collections.abc import Callable

import pytest

from veilmq.client.messages import ClientError, Unreachable
from veilmq.consumer.intake import Intake, is_fatal

UNREACHABLE = Unreachable("http://nowhere", "made up")
MISSING = ClientError("AWS.SimpleQueueService.NonExistentQueue", "There is none.", 400)


class Source:
    """A queue that answers when the test says so."""

    def __init__(self, room: int = 100) -> None:
        """Have ``room`` for messages."""
        self.room = room
        self.asked: list[int] = []
        self.answers: list[asyncio.Future[list[str]]] = []
        self.taken: list[str] = []
        self.failures: list[Exception] = []
        self.pauses: list[float] = []
        self.resume = asyncio.Event()

    def intake(self, polls_max: int = 3) -> Intake[str]:
        """Return an intake of this queue."""
        return Intake(
            self.receive,
            room=lambda: self.room,
            taken=self.taken.extend,
            failed=self.failures.append,
            polls_max=polls_max,
            pause=self.pause,
        )

    async def receive(self, count: int) -> list[str]:
        """Wait for the test's answer."""
        self.asked.append(count)
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        return await answer

    async def pause(self, seconds: float) -> None:
        """Note the pause, and wait until the test ends it."""
        self.pauses.append(seconds)
        self.resume.clear()
        await self.resume.wait()


async def turn() -> None:
    """Let what can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


def played(scenario: Callable[[Source, Intake[str]], object], **options: int) -> None:
    """Run a scenario."""

    async def play() -> None:
        source = Source(**options)
        intake = source.intake()
        intake.fill()
        await turn()
        await scenario(source, intake)  # type: ignore[misc]

    asyncio.run(play())


def test_one_poll_while_it_is_quiet_and_several_after_a_hit() -> None:
    async def scenario(source: Source, intake: Intake[str]) -> None:
        assert source.asked == [10]
        source.answers[0].set_result(["a"])
        await turn()
        assert (source.taken, intake.polling) == (["a"], 3)
        for answer in source.answers[1:]:
            answer.set_result([])
        await turn()
        assert intake.polling == 1

    played(scenario)


def test_what_polls_may_bring_takes_room() -> None:
    async def scenario(source: Source, intake: Intake[str]) -> None:
        assert source.asked == [10]
        source.room = 14
        source.answers[0].set_result(["a"])
        await turn()
        assert source.asked == [10, 10, 4], "fourteen in all, however many polls"

    played(scenario, room=14)


def test_without_room_nothing_is_asked_until_there_is() -> None:
    async def scenario(source: Source, intake: Intake[str]) -> None:
        assert source.asked == []
        source.room = 1
        intake.fill()
        await turn()
        assert source.asked == [1]

    played(scenario, room=0)


def test_pauses_grow_up_to_ten_seconds_and_never_end_the_intake() -> None:
    async def scenario(source: Source, intake: Intake[str]) -> None:
        for _ in range(6):
            source.answers[-1].set_exception(UNREACHABLE)
            await turn()
            intake.fill()
            assert intake.polling == 0, "a pause is a pause"
            source.resume.set()
            await turn()
        assert [round(pause / full, 2) for pause, full in zip(source.pauses, (1, 2, 4, 8, 10, 10), strict=True)] == [
            pytest.approx(0.875, abs=0.13)
        ] * 6
        source.answers[-1].set_result(["a"])
        await turn()
        assert source.taken == ["a"]
        assert source.failures == []

    played(scenario)


def test_what_no_pause_mends_is_told_once_and_ends_it() -> None:
    async def scenario(source: Source, intake: Intake[str]) -> None:
        source.answers[0].set_exception(MISSING)
        await turn()
        intake.fill()
        assert (source.failures, source.pauses, intake.polling) == ([MISSING], [], 0)

    played(scenario)


def test_stopping_waits_for_the_polls_on_their_way() -> None:
    async def scenario(source: Source, intake: Intake[str]) -> None:
        stopping = asyncio.create_task(intake.stop())
        await turn()
        assert not stopping.done()
        source.answers[0].set_result(["last"])
        await stopping
        assert (source.taken, intake.polling) == (["last"], 0)

    played(scenario)


@pytest.mark.parametrize(
    ("error", "fatal"),
    [
        (MISSING, True),
        (ClientError("QueueDoesNotExist", "", 400), True),
        (ClientError("AccessDeniedException", "", 403), True),
        (ClientError("InvalidSignatureException", "", 403), True),
        (ValueError("the timeout is 0"), True),
        (ClientError("ThrottlingException", "", 400), False),
        (ClientError("RequestThrottled", "", 403), False),
        (ClientError("OverLimit", "", 403), False),
        (ClientError("InternalError", "", 500), False),
        (UNREACHABLE, False),
    ],
    ids=[
        "query",
        "json",
        "denied",
        "secret",
        "unusable",
        "throttled",
        "throttled-403",
        "quota",
        "internal",
        "unreachable",
    ],
)
def test_only_what_a_human_must_mend_is_fatal(error: Exception, fatal: bool) -> None:
    assert is_fatal(error) is fatal
