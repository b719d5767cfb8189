"""The report of the pipeline as a reader of it sees it: in a browser, from a file."""

from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.console.barriers import barriers
from tests.pipeline.made_report import KEYS, QUEUES, content, made_queues
from veilmq.pipeline.report import page
from veilmq.pipeline.tune import DEFAULTS

OPENED_S_MAX = 1.0


def opened(browser: Browser, path: Path, text: str) -> tuple[Page, list[str], float]:
    """Open the page; return it, what it asked of others or failed with, and how many s of a processor it took."""
    path.write_text(text, encoding="utf-8")
    shown = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    wrong: list[str] = []
    shown.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    figures = shown.context.new_cdp_session(shown)
    figures.send("Performance.enable", {"timeDomain": "threadTicks"})  # which other processes have no part in
    shown.goto(path.as_uri())
    shown.wait_for_selector("html[data-ready]")
    found = {each["name"]: each["value"] for each in figures.send("Performance.getMetrics")["metrics"]}
    return shown, wrong, found["TaskDuration"]


def test_a_reader_finds_a_queue_and_what_is_wrong_with_it(browser: Browser, tmp_path: Path) -> None:
    text = page(made_queues(QUEUES), title="Timeouts", at_ms=0, options=DEFAULTS)
    shown, wrong, took_s = opened(browser, tmp_path / "report.html", text)
    assert took_s < OPENED_S_MAX
    rows = shown.locator("#rows > tr")
    expect(rows).to_have_count(QUEUES)
    worst = content(text)["queues"][0]
    expect(rows.first).to_contain_text(worst["name"])
    shown.get_by_role("searchbox").fill("queue-077")
    expect(rows).to_have_count(1)
    expect(shown.get_by_role("status")).to_have_text(f"1 of {QUEUES} queues")
    shown.get_by_role("button", name="queue-077").click()
    expect(shown.locator("section figure svg")).to_have_count(4)
    expect(shown.locator("section tbody tr")).to_have_count(KEYS)
    assert barriers(shown) == []
    shown.emulate_media(color_scheme="dark")
    assert barriers(shown) == []
    shown.get_by_role("button", name="queue-077").click()
    expect(shown.locator("section")).to_have_count(0)
    shown.get_by_role("searchbox").fill("")
    shown.get_by_role("button", name="duplicates").click()
    most = max(each["row"][5] for each in content(text)["queues"])
    expect(rows.first).to_contain_text(next(q["name"] for q in content(text)["queues"] if q["row"][5] == most))
    assert wrong == []


def test_few_queues_need_no_list(browser: Browser, tmp_path: Path) -> None:
    shown, wrong, _ = opened(browser, tmp_path / "none.html", hostile(0))
    assert_text(shown, "No receipt has ended yet", charts=0)
    assert wrong == []
    (tmp_path / "none.html").write_text(hostile(1), encoding="utf-8")
    shown.reload()
    assert_text(shown, "Unfinished work", charts=4)
    assert wrong == []


def hostile(queues: int) -> str:
    few = made_queues(queues)
    for each in few:
        each["name"] = each["keys"][0][0] = each["row"][-1] = "<b onclick=x>&amp;"
    return page(few, title="</title><b>", at_ms=0, options=DEFAULTS)


def assert_text(shown: Page, words: str, *, charts: int) -> None:
    expect(shown.locator("#content")).to_contain_text(words)
    expect(shown.locator("b[onclick]")).to_have_count(0)
    expect(shown.locator("h1")).to_have_text("</title><b>")
    assert shown.locator("svg").count() == charts
