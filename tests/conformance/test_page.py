"""The endpoint's page in a real browser: typing, streaming, stopping, an outage."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette")
pytest.importorskip("openai")
pytest.importorskip("playwright")

from endpoint_world import World, alone, chat_prompt, mostly_right, text_of, world
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from draftwire.testing.link import LinkProfile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH"),
]

QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def served() -> Iterator[World]:
    with world([mostly_right(amount=0.1)], profile=LinkProfile(rtt_ms=20), k=5) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, served: World) -> Iterator[Page]:
    """The page, which raises no error and asks nobody else for anything."""
    page = browser.new_page()
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    page.on("console", lambda line: failures.append(line.text) if line.type == "error" else None)
    page.on("request", lambda asked: asked.url.startswith(served.url) or failures.append(asked.url))
    page.goto(served.url)
    expect(page.locator("#model")).to_have_text("table")
    yield page
    assert failures == []
    page.close()


def answers(page: Page) -> Locator:
    return page.locator(".message.assistant > span:last-child")


def ask(page: Page, text: str, longest: int) -> None:
    page.get_by_label("Longest answer").fill(str(longest))
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")


def past(page: Page) -> Locator:
    """Answers that have ended, latest first."""
    return page.locator("#past tr:has(td)")


def said(prompt: str, count: int) -> str:
    return text_of(alone(prompt, count))


def shown(text: str) -> str:
    """Text as a page gives it back."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def test_an_answer_streams_in_and_each_token_shows_its_origin(page: Page) -> None:
    ask(page, "the cat", 60)
    expect(past(page)).to_have_count(1)
    assert page.locator(".message.user > span:last-child").text_content() == "the cat"
    text = said(chat_prompt("the cat"), 60)
    assert shown(answers(page).text_content() or "") == shown(text)
    kinds = {node.get_attribute("class") for node in answers(page).locator("span").all()}
    assert {"accepted", "corrected"} <= kinds <= {"accepted", "corrected", "cloud"}
    expect(page.locator("#tau")).to_have_text(re.compile(r"^\d+\.\d\d$"))
    expect(page.locator("#rtt")).to_have_text(re.compile(r"^\d+\.\d ms$"))
    expect(page.locator("#acceptance")).to_have_text(re.compile(r"^\d+ %$"))
    assert page.locator("#speed-chart polyline").count() == 1
    assert page.locator("#rounds-chart rect").count() > 2


def test_a_conversation_goes_on_and_can_begin_anew(page: Page) -> None:
    ask(page, "the cat", 8)
    expect(past(page)).to_have_count(1)
    ask(page, "go on", 8)
    expect(past(page)).to_have_count(2)
    first = said(chat_prompt("the cat"), 8)
    second = said(f"user: the cat\nassistant: {first}\nuser: go on\nassistant:", 8)
    assert shown(answers(page).nth(1).text_content() or "") == shown(second)
    page.get_by_role("button", name="New chat").click()
    ask(page, "the cat", 8)
    expect(past(page)).to_have_count(3)
    assert shown(answers(page).text_content() or "") == shown(first)


def test_the_cloud_alone_writes_the_same_and_drafts_nothing(page: Page) -> None:
    page.get_by_label("cloud alone").check()
    ask(page, "the cat", 30)
    expect(past(page).locator("th")).to_have_text("cloud alone")
    assert shown(answers(page).text_content() or "") == shown(said(chat_prompt("the cat"), 30))
    assert answers(page).locator(".accepted").count() == 0
    expect(page.locator("#plan")).to_have_text("cloud alone")


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stopping_ends_the_generation_and_keeps_what_is_there(
    page: Page, served: World, how: str
) -> None:
    ask(page, "the cat", 4000)
    expect(answers(page).locator("span").nth(2)).to_be_attached()
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_enabled()
    stop.click() if how == "button" else page.keyboard.press("Escape")
    expect(stop).to_be_disabled()
    expect(page.get_by_label("Message")).to_be_focused()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    served.wait_until_idle()
    text = shown(answers(page).text_content() or "")
    assert text
    assert shown(said(chat_prompt("the cat"), 4000)).startswith(text.removesuffix("�"))


def test_an_outage_is_shown_and_its_end_too(page: Page, served: World) -> None:
    assert served.link is not None
    ask(page, "the cat", 300)
    expect(answers(page).locator("span").nth(2)).to_be_attached()
    served.link.cut(refuse_s=1.5)
    expect(page.get_by_role("alert")).to_contain_text("No connection to the verifier")
    expect(page.get_by_role("alert")).to_be_hidden(timeout=20_000)
    expect(past(page)).to_have_count(1, timeout=30_000)
    assert shown(answers(page).text_content() or "") == shown(said(chat_prompt("the cat"), 300))


def test_the_whole_can_be_used_by_keyboard_and_named_by_a_screen_reader(page: Page) -> None:
    expect(page.get_by_label("Message")).to_be_focused()
    names = []
    for _ in range(7):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.id || document.activeElement.value"))
    assert names[:4] == ["split", "longest", "fresh", "send"]  # Stop is of no use yet
    for node in page.locator("button, input, textarea").all():
        assert page.evaluate(
            "node => node.labels?.length > 0 || node.textContent.trim() !== ''",
            node.element_handle(),
        )
    ask(page, "the cat", 8)
    expect(page.get_by_role("status")).to_contain_text("Answer:")
    assert page.get_by_role("log").count() == 1
    assert page.get_by_role("img", name="Tokens per second over").count() == 1


def test_a_phone_shows_all_of_it_without_scrolling_sideways(
    browser: Browser, served: World
) -> None:
    page = browser.new_page(viewport={"width": 360, "height": 740})
    page.goto(served.url)
    ask(page, "the cat", 60)
    expect(past(page)).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


def test_an_error_is_told_where_the_answer_would_be(page: Page) -> None:
    ask(page, "a cat" * 5000, 8)
    expect(page.locator(".message.error")).to_contain_text("shorten the prompt")
    ask(page, "the cat", 8)
    expect(past(page)).to_have_count(1)
