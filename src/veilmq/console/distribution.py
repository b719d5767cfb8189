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

from veilmq.console.page_context import PageContext
from veilmq.console.ports import Recommendation
from veilmq.console.queue_queries import show_queue
from veilmq.console.rendering import duration, number, path_of
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
        return self.deleted + self.late + self.expired

    @property
    def words(self) -> str:
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


def histogram(times: ProcessingTimes, *, timeout_s: int, recommended_s: int | None) -> Histogram | None:
    """Return the drawing; ``None`` without data."""
    numbers = {*times.deleted, *times.late, *times.expired}
    if not numbers:
        return None
    bins = [_bin(times, number) for number in range(min(numbers), max(numbers) + 1)]
    ends = [timeout_s] if recommended_s is None else [timeout_s, recommended_s]
    scale = _scale(numbers, [end_s * SECOND_MS for end_s in ends if end_s])
    receipts_max = max(each.receipts for each in bins)
    return Histogram(
        bins=[each for each in bins if each.receipts],
        columns=Markup("").join(column for each in bins for column in _columns(each, scale, receipts_max)),
        axis=Markup("").join(_marks(scale)),
        lines=Markup("").join(_lines(scale, timeout_s, recommended_s)),
        height_px=HEIGHT_PX,
    )


def _bin(times: ProcessingTimes, number: int) -> Bin:
    return Bin(
        begin_ms=bin_begin_ms(number),
        end_ms=bin_begin_ms(number + 1),
        deleted=times.deleted.get(number, 0),
        late=times.late.get(number, 0),
        expired=times.expired.get(number, 0),
    )


def _scale(numbers: set[int], lines_ms: list[int]) -> _Scale:
    """Return a scale for all bins and lines, with the margin of a bin on both sides."""
    places = [*numbers, *(int(log2(at_ms) * BINS_A_DOUBLING) for at_ms in lines_ms)]
    first, last = min(places) - 1, max(places) + 2
    return _Scale(first, max(last - first, _BINS_MIN))


def _columns(each: Bin, scale: _Scale, receipts_max: int) -> Iterable[Markup]:
    x, end_x = scale.x(each.begin_ms), scale.x(each.end_ms)
    floor = float(_FLOOR_PX)
    for kind, count in (("deleted", each.deleted), ("late", each.late), ("expired", each.expired)):
        if count:
            height = max(count * (_FLOOR_PX - _TOP_PX) / receipts_max, 1.0)
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
    lines = [("in-force", timeout_s, f"timeout {duration(timeout_s)}", 12)]
    if recommended_s is not None and recommended_s != timeout_s:
        lines.append(("recommended", recommended_s, f"recommended {duration(recommended_s)}", 28))
    for kind, at_s, words, y in lines:
        x = scale.x(at_s * SECOND_MS)
        turned = x > _TURN_PERCENT
        anchor, dx = ("end", -4) if turned else ("start", 4)
        yield _LINE.format(kind=kind, x=x, floor=_FLOOR_PX, y=y, dx=dx, anchor=anchor, words=words)


_KINDS = {"deleted": "deleted", "late": "deleted after their timeout", "expired": "expired: they took longer than this"}


class TimeoutSection(NamedTuple):
    """The input of ``parts/distribution.html``; a sentence says why ``times`` or ``recommendation`` are missing.

    ``refusal`` says why the recommendation cannot be applied, if so.
    """

    times: ProcessingTimes | str
    histogram: Histogram | None
    recommendation: Recommendation | str
    refusal: str


async def timeout_section(page: PageContext, *, timeout_s: int) -> TimeoutSection:
    """Return the processing times and recommendation of the page's queue, whose timeout is ``timeout_s``."""
    history = page.ports.history
    times, recommendation = await history.processing_times(page.queue), await history.recommendation(page.queue)
    recommended_s, refusal = None, ""
    if not isinstance(recommendation, str):
        recommended_s, refusal = recommendation.recommended_s, _refusal(recommendation, timeout_s)
    drawn = None if isinstance(times, str) else histogram(times, timeout_s=timeout_s, recommended_s=recommended_s)
    return TimeoutSection(times, drawn, recommendation, refusal)


async def apply_timeout(page: PageContext) -> Response:
    """Set the recommended timeout, if neither it nor the queue's timeout has changed since the page was shown."""
    timeout_s = (await show_queue(page)).settings.visibility_timeout_s
    recommendation = await page.ports.history.recommendation(page.queue)
    if isinstance(recommendation, str):
        return _refused(page, recommendation)
    refusal = _refusal(recommendation, timeout_s)
    if not refusal and page.form.get("recommended_s") != str(recommendation.recommended_s):
        refusal = "The recommendation has changed; review it on the page of the queue."
    if refusal:
        return _refused(page, refusal)
    changes = {"VisibilityTimeout": str(recommendation.recommended_s)}
    await page.sqs("SetQueueAttributes", {"QueueUrl": page.queue_url, "Attributes": changes})
    return page.redirect(path_of(page.queue), done="timeout-applied")


def _refusal(recommendation: Recommendation, timeout_s: int) -> str:
    if recommendation.recommended_s is None:
        is_unknown = recommendation.confidence == "none"
        return (
            "There is not enough data for a recommendation yet."
            if is_unknown
            else "No other timeout is clearly better."
        )
    if timeout_s == recommendation.recommended_s:
        return "The queue already has this timeout."
    if timeout_s != recommendation.current_s:
        return (
            f"The queue was changed: its timeout is {timeout_s:,} s, but the statistics are for "
            f"{recommendation.current_s:,} s. Run veilmq pipeline tune again."
        )
    return "" if recommendation.change else "The improvement is too small for a change."


def _refused(page: PageContext, message: str) -> Response:
    return page.render("refused.html", status=409, title="Not applied", message=f"{message} Nothing was changed.")
