"""The only reader of the system's clocks, and the clock of an embedded store.

Store time, which decides when anything is due, advances with the boot clock: it continues while the machine is
suspended and ignores steps of the wall clock. Users see store time plus its difference to the wall clock, which is
updated only when they are more than 500 ms apart.

Across restarts, store time continues from a mark in the store (``Mark``). Within one boot it continues by the boot
clock, without the wall clock. After a reboot, the wall-clock time since the mark is added: all of it if the kernel
reported its clock as synchronised both at the mark and now, otherwise at most an hour, because a wrong clock would
expire everything. The rest is held back until the kernel reports its clock as synchronised (if it was at the mark), or
until an operator trusts it.
"""

import asyncio
import ctypes
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from veilmq.core.commands import Clock, Timer

UNTRUSTED_MS_MAX = 3_600_000  # the most time that an unsynchronised clock may add after a reboot
DIFFERENCE_MS_MAX = 500  # the largest difference between shown time and the wall clock

NS_PER_MS = 1_000_000
_MS_PER_S = 1_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_boot_ns = partial(time.clock_gettime_ns, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
# The longest sleep of an alarm before it reads the clock: the loop's clock stops while the machine is suspended.
_ALARM_S_MAX = 60.0

_STATUS_OFFSET = 40  # of struct timex: an int and four longs, aligned; of 64-bit systems
_TIMEX_BYTES = 512
_UNSYNCHRONISED = 0x40


stopwatch_s = time.perf_counter  # measures durations, in seconds


def wall_s() -> float:
    """Return the wall clock in seconds since the epoch, to compare with signatures of clients."""
    return time.time()


def kernel_synchronised() -> bool:
    """Return whether the kernel reports its clock as synchronised; False if it cannot be read."""
    if ctypes.sizeof(ctypes.c_long) != ctypes.sizeof(ctypes.c_int64):
        return False
    try:
        library, timex = ctypes.CDLL(None), ctypes.create_string_buffer(_TIMEX_BYTES)
    except OSError:  # a Python without dynamic loading
        return False
    read = getattr(library, "adjtimex", None) or getattr(library, "ntp_adjtime", None)
    if read is None or read(timex) < 0:
        return False
    return not ctypes.c_int.from_buffer(timex, _STATUS_OFFSET).value & _UNSYNCHRONISED


class Doubt(msgspec.Struct, frozen=True):
    """The mark since which the wall clock is in doubt; ``synchronised`` is what the kernel reported then."""

    wall_ms: int
    store_ms: int
    synchronised: bool


class Mark(msgspec.Struct, frozen=True):
    """Store time and the machine's clocks at one instant; ``ahead_ms`` is shown time minus store time."""

    boot_id: str
    boot_ms: int
    wall_ms: int
    store_ms: int
    synchronised: bool
    ahead_ms: int
    doubt: Doubt | None = None


_decode = msgspec.json.Decoder(Mark).decode


class SystemClock(Clock):
    """``core.commands.Clock`` of an embedded store; tests replace single clocks to simulate a reboot."""

    def __init__(
        self,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        boot_ns: Callable[[], int] = _boot_ns,
        boot_id: str | None = None,
        is_synchronised: Callable[[], bool] = kernel_synchronised,
    ) -> None:
        """Start at the current wall clock; ``resume`` follows."""
        self._wall_ns = wall_ns
        self._boot_ns = boot_ns
        self._is_synchronised = is_synchronised
        if boot_id is None and _BOOT_ID.is_file():
            boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
        self.boot_id = boot_id or ""  # empty if the system has no such id
        self._offset_ms = self.wall_ms() - self.boot_ms()
        self._ahead_ms = 0
        self.doubt: Doubt | None = None  # set while the wall clock is in doubt

    def boot_ms(self) -> int:
        """Return the boot clock, which never goes back."""
        return self._boot_ns() // NS_PER_MS

    def wall_ms(self) -> int:
        """Return the wall clock, which may step."""
        return self._wall_ns() // NS_PER_MS

    def now_ms(self) -> int:
        return self._boot_ns() // NS_PER_MS + self._offset_ms

    def ahead_ms(self, now_ms: int) -> int:
        """Return shown time minus ``now_ms``, the current store time."""
        difference_ms = self.wall_ms() - now_ms
        if abs(difference_ms - self._ahead_ms) > DIFFERENCE_MS_MAX:
            self._ahead_ms = difference_ms
        return self._ahead_ms

    def shown_ms(self, at_ms: int | None = None) -> int:
        now_ms = self.now_ms()
        return (now_ms if at_ms is None else at_ms) + self.ahead_ms(now_ms)

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        return _Alarm(clock=self, at_ms=at_ms, callback=callback)

    # Restarts.

    def mark(self) -> bytes:
        """Return the current ``Mark``, encoded."""
        boot_ms = self.boot_ms()
        store_ms = boot_ms + self._offset_ms
        instants = boot_ms, self.wall_ms(), store_ms
        mark = Mark(self.boot_id, *instants, self._is_synchronised(), self.ahead_ms(store_ms), self.doubt)
        return msgspec.json.encode(mark)

    def resume(self, mark: bytes | None, *, floor_ms: int) -> None:
        """Continue from ``mark``, else from the wall clock, but not before ``floor_ms``, the newest stored instant."""
        boot_ms, store_ms, self._ahead_ms, self.doubt = self.boot_ms(), self.wall_ms(), 0, None
        before = None if mark is None else _decode(mark)
        if before is not None:
            self._ahead_ms, self.doubt = before.ahead_ms, before.doubt
            elapsed_ms = max(0, store_ms - before.wall_ms)
            if before.boot_id and before.boot_id == self.boot_id:
                elapsed_ms = max(0, boot_ms - before.boot_ms)
            elif not (before.synchronised and self._is_synchronised()):
                if self.doubt is None and (before.synchronised or elapsed_ms > UNTRUSTED_MS_MAX):
                    self.doubt = Doubt(before.wall_ms, before.store_ms, before.synchronised)
                elapsed_ms = min(elapsed_ms, UNTRUSTED_MS_MAX)
            store_ms = before.store_ms + elapsed_ms
        self._offset_ms = max(store_ms, floor_ms) - boot_ms
        self.settle()

    def held_back_ms(self) -> int:
        """Return the time that is held back: the wall clock's advance beyond store time since the doubt."""
        if self.doubt is None:
            return 0
        held_ms = (self.wall_ms() - self.doubt.wall_ms) - (self.now_ms() - self.doubt.store_ms)
        return held_ms if held_ms > DIFFERENCE_MS_MAX else 0

    def settle(self) -> int | None:
        """End a doubt if the clock is synchronised and was at the mark; return the time applied if it has ended."""
        is_trusted = self.doubt is not None and self.doubt.synchronised and self._is_synchronised()
        return self.trust() if is_trusted else None

    def trust(self) -> int:
        """Apply the time that is held back, and end the doubt; return the time applied."""
        held_ms = self.held_back_ms()
        self._offset_ms += held_ms
        self.doubt = None
        return held_ms


class _Alarm:
    """A timer that rearms itself if the loop fires it before its instant."""

    def __init__(self, *, clock: SystemClock, at_ms: int, callback: Callable[[], object]) -> None:
        self._clock, self._at_ms, self._callback = clock, at_ms, callback
        self._loop = asyncio.get_running_loop()
        self._arm()

    def cancel(self) -> None:
        self._handle.cancel()

    def _arm(self) -> None:
        delay_s = max(0, self._at_ms - self._clock.now_ms()) / _MS_PER_S
        self._handle = self._loop.call_later(min(delay_s, _ALARM_S_MAX), self._run)

    def _run(self) -> None:
        if self._clock.now_ms() < self._at_ms:
            self._arm()
        else:
            self._callback()
