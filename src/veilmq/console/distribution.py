"""Processing times of a queue: a histogram on a logarithmic scale, next to its timeouts.

Columns are stacked by how receipts ended. An expired one only shows that processing took longer than its timeout, so
the column at a timeout does not show processing times.

Applying a recommendation follows the rules of ``veilmq pipeline tune --apply``: only if the queue's timeout is still
the one that the statistics were made for, and if the gain is worth a change.
"""

from collections.abc import Iterable
from math import log2
from typing import NamedTuple

from markupsafe import Markup
from starlette.responses import Response

from veilmq.console.ports import Advice
from veilmq.console.queue_look import look
from veilmq.console.rendering import duration, number, path_of
from veilmq.console.visit import Visit
from veilmq.core.limits import SECOND_MS
from veilmq.events import BINS_A_DOUBLING, ProcessingTimes, bin_begin_ms

HEIGHT_PX = 220
_TOP_PX = 36
_FLOOR_PX = 196
_BINS_MIN = 8
_MARKS_MS = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 43_200_000)
_TURN_PERCENT = 75

_COLUMN = Markup(
    '<rect class="{kind}" x="{x:.2f}%" y="{y:.1f}" width="{width:.2f}%" height="{height:.1f}">'
    "<title>{words}</title></rect>"
)
_MARK = Markup(
    '<line class="mark" x1="{x:.2f}%" x2="{x:.2f}%" y1="{top}" y2="{floor}"/>'
    '<text x="{x:.2f}%" dx="2" y="{y}">{words}</text>'
)
_LINE = Markup(
    '<line class="{kind}" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{floor}"/>'
    '<text class="{kind}" x="{x:.2f}%" dx="{dx}" y="{y}" text-anchor="{anchor}">{words}</text>'
)


class Bin(NamedTuple):
    """Receipts by processing time: a row of the table beside the drawing."""

    begin_ms: float
    end_ms: float
    deleted: int
    late: int
    expired: int

    @property
    def receipts(self) -> int:
        """The number of receipts."""
        return self.deleted + self.late + self.expired

    @property
    def words(self) -> str:
        """The bounds."""
        return f"{duration(self.begin_ms / SECOND_MS)} to {duration(self.end_ms / SECOND_MS)}"


class Histogram(NamedTuple):
    """The drawing: ``columns``, ``axis`` and ``lines`` are SVG markup; ``bins`` is the same for a table."""

    bins: list[Bin]
    columns: Markup
    axis: Markup
    lines: Markup
    height_px: int


class _Scale(NamedTuple):
    first: int
    bins: int

    def x(self, at_ms: float) -> float:
        """Return the position of a time in per cent, clamped to the edges."""
        return min(max((log2(max(at_ms, 1)) * BINS_A_DOUBLING - self.first) * 100 / self.bins, 0.0), 100.0)


def histogram(held: ProcessingTimes, *, timeout_s: int, recommended_s: int | None) -> Histogram | None:
    """Return the drawing; ``None`` without data."""
    numbers = {*held.deleted, *held.late, *held.expired}
    if not numbers:
        return None
    bins = [_bin(held, number) for number in range(min(numbers), max(numbers) + 1)]
    ends = [timeout_s] if recommended_s is None else [timeout_s, recommended_s]
    scale = _scale(numbers, [end_s * SECOND_MS for end_s in ends if end_s])
    most = max(each.receipts for each in bins)
    return Histogram(
        bins=[each for each in bins if each.receipts],
        columns=Markup("").join(column for each in bins for column in _columns(each, scale, most)),
        axis=Markup("").join(_marks(scale)),
        lines=Markup("").join(_lines(scale, timeout_s, recommended_s)),
        height_px=HEIGHT_PX,
    )


def _bin(held: ProcessingTimes, number: int) -> Bin:
    return Bin(
        begin_ms=bin_begin_ms(number),
        end_ms=bin_begin_ms(number + 1),
        deleted=held.deleted.get(number, 0),
        late=held.late.get(number, 0),
        expired=held.expired.get(number, 0),
    )


def _scale(numbers: set[int], lines_ms: list[int]) -> _Scale:
    """Return a scale for all bins and lines, with the margin of a bin on both sides."""
    places = [*numbers, *(int(log2(at_ms) * BINS_A_DOUBLING) for at_ms in lines_ms)]
    first, last = min(places) - 1, max(places) + 2
    return _Scale(first, max(last - first, _BINS_MIN))


def _columns(each: Bin, scale: _Scale, most: int) -> Iterable[Markup]:
    x, end_x = scale.x(each.begin_ms), scale.x(each.end_ms)
    floor = float(_FLOOR_PX)
    for kind, count in (("deleted", each.deleted), ("late", each.late), ("expired", each.expired)):
        if count:
            height = max(count * (_FLOOR_PX - _TOP_PX) / most, 1.0)
            floor -= height
            words = f"{each.words}: {number(count)} {_KINDS[kind]}"
            yield _COLUMN.format(
                kind=kind, x=x + 0.1, y=floor, width=max(end_x - x - 0.2, 0.3), height=height, words=words
            )


def _marks(scale: _Scale) -> Iterable[Markup]:
    for at_ms in _MARKS_MS:
        x = scale.x(at_ms)
        if 0 < x < 100:
            words = duration(at_ms / SECOND_MS)
            yield _MARK.format(x=x, top=_TOP_PX, floor=_FLOOR_PX + 4, y=_FLOOR_PX + 16, words=words)


def _lines(scale: _Scale, timeout_s: int, recommended_s: int | None) -> Iterable[Markup]:
    told = [("in-force", timeout_s, f"timeout {duration(timeout_s)}", 12)]
    if recommended_s is not None and recommended_s != timeout_s:
        told.append(("recommended", recommended_s, f"recommended {duration(recommended_s)}", 28))
    for kind, at_s, words, y in told:
        x = scale.x(at_s * SECOND_MS)
        turned = x > _TURN_PERCENT
        anchor, dx = ("end", -4) if turned else ("start", 4)
        yield _LINE.format(kind=kind, x=x, floor=_FLOOR_PX, y=y, dx=dx, anchor=anchor, words=words)


_KINDS = {"deleted": "deleted", "late": "deleted after their timeout", "expired": "expired: they took longer than this"}


class TimeoutLook(NamedTuple):
    """The input of ``parts/distribution.html``; without ``histogram`` or ``advice``, a sentence says why.

    ``obstacle`` says why the recommendation cannot be applied, if so.
    """

    held: ProcessingTimes | None
    why_not: str
    histogram: Histogram | None
    advice: Advice | None
    no_advice: str
    obstacle: str


async def timeout_look(visit: Visit, *, timeout_s: int) -> TimeoutLook:
    """Return the processing times and recommendation of the page's queue, whose timeout is ``timeout_s``."""
    past = visit.ports.past
    held, advice = await past.held_times(visit.queue), await past.advice(visit.queue)
    known = None if isinstance(held, str) else held
    wanted = None if isinstance(advice, str) else advice
    return TimeoutLook(
        held=known,
        why_not=held if isinstance(held, str) else "",
        histogram=None
        if known is None
        else histogram(known, timeout_s=timeout_s, recommended_s=None if wanted is None else wanted.recommended_s),
        advice=wanted,
        no_advice=advice if isinstance(advice, str) else "",
        obstacle="" if wanted is None else _obstacle(wanted, timeout_s),
    )


async def apply_timeout(visit: Visit) -> Response:
    """Set the recommended timeout, if neither it nor the queue's timeout has changed since the page was shown."""
    timeout_s = (await look(visit)).settings.visibility_timeout_s
    advice = await visit.ports.past.advice(visit.queue)
    if isinstance(advice, str):
        return _refused(visit, advice)
    obstacle = _obstacle(advice, timeout_s)
    if not obstacle and visit.form.get("recommended_s") != str(advice.recommended_s):
        obstacle = "There is another recommendation by now; look at it on the page of the queue."
    if obstacle:
        return _refused(visit, obstacle)
    changes = {"VisibilityTimeout": str(advice.recommended_s)}
    await visit.sqs("SetQueueAttributes", {"QueueUrl": visit.queue_url, "Attributes": changes})
    return visit.go(path_of(visit.queue), done="timeout-applied")


def _obstacle(advice: Advice, timeout_s: int) -> str:
    if advice.recommended_s is None:
        return (
            "Nothing can be recommended yet." if advice.confidence == "none" else "No other timeout is surely better."
        )
    if timeout_s == advice.recommended_s:
        return "The queue has this timeout."
    if timeout_s != advice.current_s:
        return (
            f"The queue was changed since: its timeout is {timeout_s:,} s, and the statistics were made for "
            f"{advice.current_s:,} s. Run veilmq pipeline tune again."
        )
    return "" if advice.change else "The gain is too small to be worth a change."


def _refused(visit: Visit, message: str) -> Response:
    return visit.page("refused.html", status=409, title="Not applied", message=f"{message} Nothing was changed.")
