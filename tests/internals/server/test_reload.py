"""SIGHUP reads files again; without any it does no harm."""

import asyncio
import logging
import os
import signal

import pytest

from veilmq.server.security import Reload


def test_the_signal_reads_everything_again() -> None:
    """Each time, while the context lasts; what was there before is there after."""
    before = signal.getsignal(signal.SIGHUP)
    read: list[str] = []

    async def story() -> None:
        done = asyncio.Event()
        with Reload([lambda: read.append("a"), lambda: read.append("b"), done.set]).on_signal():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.wait_for(done.wait(), 10)
                done.clear()

    asyncio.run(story())
    assert read == ["a", "b", "a", "b"]
    assert signal.getsignal(signal.SIGHUP) == before


def test_with_nothing_to_read_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Reload([])()
    assert "there is nothing to read again" in caplog.text


def test_in_another_thread_there_are_no_signals() -> None:
    """A server inside a program leaves the program's signals alone."""

    async def story() -> None:
        with Reload([]).on_signal():
            assert signal.getsignal(signal.SIGHUP) == before

    before = signal.getsignal(signal.SIGHUP)
    asyncio.run(asyncio.to_thread(lambda: asyncio.run(story())))
