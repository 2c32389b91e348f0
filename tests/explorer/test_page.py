"""The page in a real browser: Chromium, through Playwright. Skipped where either is missing."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from pushdown_lm.explorer.launch import load_library, serve_in_background
from tests.explorer.conftest import LIMITS

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
SECONDS = 60_000
"""To wait, in milliseconds, on a machine that is busy."""
playwright.expect.set_options(timeout=SECONDS)
SENTENCE = "the dog that she has seen is here ."


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("no Chromium is installed (Debian: apt install chromium)")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def two_models(word_folder: Path, bpe_folder: Path) -> Iterator[str]:
    library = load_library([word_folder, bpe_folder], threshold=10.0, limits=LIMITS)
    with serve_in_background(library) as address:
        yield address
    library.close()


@pytest.fixture(scope="module")
def one_model(word_folder: Path) -> Iterator[str]:
    library = load_library([word_folder], threshold=10.0, limits=LIMITS)
    with serve_in_background(library, token="a token") as address:
        yield address
    library.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page on which an error of the script, or a request elsewhere, fails the test."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(SECONDS)
    opened = context.new_page()
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
    opened.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("http://127.0.0.1", "data:", "blob:"))
            else wrong.append(f"request to {request.url}")
        ),
    )
    yield opened
    context.close()
    assert wrong == []


def read(page: Any, sentence: str) -> None:
    """Type a sentence, and wait until it is read by all models."""
    page.get_by_label("Sentence").fill(sentence)
    page.get_by_label("Sentence").press("Enter")
    finished(page)


def finished(page: Any) -> None:
    playwright.expect(page.get_by_role("status").first).to_contain_text("log2 p")
    for status in page.get_by_role("status").all():
        playwright.expect(status).to_contain_text("log2 p")


def words(page: Any, number: int = 0) -> list[str]:
    """The words under the tree."""
    shown = page.locator(".figure.tree").nth(number).locator("text").all_text_contents()
    return shown[: len(SENTENCE.split())]


def test_typing_a_sentence(page: Any, one_model: str) -> None:
    page.goto(one_model)
    read(page, SENTENCE)
    assert words(page) == SENTENCE.split()
    playwright.expect(page.locator("#place")).to_have_text("10 of 10: </s>")
    assert page.locator(".parses li").count() > 1
    playwright.expect(page.locator(".said")).to_contain_text("It closes the tree.")
    page.get_by_label("Sentence").fill("she is here .")
    page.get_by_role("button", name="Read").click()
    playwright.expect(page.locator("#place")).to_have_text("5 of 5: </s>")


def test_a_sentence_is_sent_before_the_models_are_known(page: Any, one_model: str) -> None:
    held: list[Any] = []
    page.route("**/api/models*", lambda route: held.append(route))
    page.goto(one_model)
    page.get_by_label("Sentence").fill(SENTENCE)
    page.get_by_label("Sentence").press("Enter")
    held[0].continue_()
    finished(page)
    assert words(page) == SENTENCE.split()


def test_reloading_leaves_the_line(page: Any, word_folder: Path) -> None:
    library = load_library([word_folder], threshold=None, limits=LIMITS)
    with serve_in_background(library) as address:
        library.line.enter()  # someone whose sentence takes long
        page.goto(f"{address}#s={quote(SENTENCE)}")
        for _ in range(3):
            playwright.expect(page.get_by_role("status")).to_have_text("waiting: 1 ahead")
            page.reload()
        page.goto("about:blank")
    library.close()


def test_the_slider_replays(page: Any, one_model: str) -> None:
    page.clock.install()
    page.goto(one_model)
    read(page, SENTENCE)
    slider = page.get_by_label("Tokens read")
    slider.focus()
    page.keyboard.press("Home")
    playwright.expect(page.locator("#place")).to_have_text("1 of 10: the")
    playwright.expect(page.locator(".figure.tree text.accent[font-weight]")).to_have_text("the")
    assert page.locator(".stack li").all_text_contents() == ["ROOT", "the"]
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#place")).to_have_text("2 of 10: dog")
    page.get_by_label("Next token").click()
    playwright.expect(page.locator(".said")).to_contain_text("“that”:")
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(10_000)
    playwright.expect(page.locator("#place")).to_have_text("10 of 10: </s>")
    playwright.expect(page.get_by_role("button", name="Play")).to_be_visible()


def test_a_link_restores_the_state(page: Any, browser: Any, one_model: str) -> None:
    page.goto(one_model)
    page.get_by_label("Beam").select_option("10")
    read(page, SENTENCE)
    page.get_by_label("Previous token").click()
    page.get_by_label("Previous token").click()
    playwright.expect(page.locator("#place")).to_have_text("8 of 10: here")
    page.locator(".parses button").nth(1).click()
    page.get_by_text("Attention", exact=True).click()
    page.locator("select.token").select_option("3")
    page.locator("select.layer").select_option("1")
    title = page.locator(".attention svg title")
    playwright.expect(title).to_contain_text("attention: <s> most on <s>")
    link = page.url
    page.goto("about:blank")
    page.goto(link)
    finished(page)
    playwright.expect(page.locator("#place")).to_have_text("8 of 10: here")
    playwright.expect(page.get_by_label("Beam")).to_have_value("10")
    playwright.expect(page.get_by_label("Sentence")).to_have_value(SENTENCE)
    second = page.locator(".parses button").nth(1)
    playwright.expect(second).to_have_attribute("aria-pressed", "true")
    playwright.expect(title).to_contain_text("attention: <s> most on <s>")
    playwright.expect(page.locator("select.token")).to_have_value("3")


def test_other_parses_are_shown(page: Any, one_model: str) -> None:
    page.goto(one_model)
    read(page, SENTENCE)
    title = page.locator(".figure.tree svg title")
    best = title.text_content()
    second = page.locator(".parses button").nth(1)
    second.click()
    playwright.expect(page.locator(".parses button").nth(1)).to_have_attribute(
        "aria-pressed", "true"
    )
    brackets = page.locator(".parses button .what").nth(1).text_content()
    playwright.expect(title).to_have_text(f"the parse {brackets}")
    assert title.text_content() != best


def test_tape_and_attention(page: Any, one_model: str) -> None:
    page.goto(one_model)
    read(page, SENTENCE)
    page.get_by_text("Stack tape", exact=True).click()
    playwright.expect(page.locator(".tape svg title")).to_contain_text("stack tape: after the 0")
    page.get_by_text("Attention", exact=True).click()
    title = page.locator(".attention svg title")
    playwright.expect(title).to_contain_text("attention of . on the tokens before it")
    page.locator("select.token").select_option("2")
    playwright.expect(title).to_contain_text("attention of dog on")
    page.locator("select.layer").select_option("1")
    playwright.expect(title).to_contain_text("attention: <s> most on <s>")
    page.locator("select.head").select_option("0")
    assert page.locator(".attention svg rect").count() > 40


def test_two_models_side_by_side(page: Any, two_models: str) -> None:
    page.goto(two_models)
    read(page, SENTENCE)
    assert page.get_by_role("article").count() == 2
    assert page.locator("h2.model").all_text_contents() == ["words", "pieces"]
    playwright.expect(page.locator("#comparison svg title")).to_contain_text("words the")
    page.get_by_label("Tokens read").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    for number in (0, 1):
        said = page.locator(".said").nth(number)
        playwright.expect(said).to_contain_text(re.compile("dog|·og|·g"))
    boxes = [article.bounding_box() for article in page.get_by_role("article").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


def test_a_plain_model_beside_a_pushdown_model(
    page: Any, word_folder: Path, base_folder: Path
) -> None:
    library = load_library([word_folder, base_folder], threshold=10.0, limits=LIMITS)
    with serve_in_background(library) as address:
        page.goto(address)
        read(page, SENTENCE)
        assert page.locator("h2.model").all_text_contents() == ["words", "base"]
        plain = page.get_by_role("article").nth(1)
        assert words(page, 1) == SENTENCE.split()
        for panel in ("parses", "stack", "dropped", "tape"):
            note = plain.locator(f".{panel} .note")
            playwright.expect(note).to_contain_text(re.compile("^(None|Nothing)\\."))
        assert plain.locator(".expected li").count() == 8
        playwright.expect(plain.locator(".said")).to_contain_text("It ends the sentence.")
        plain.get_by_text("Attention", exact=True).click()
        title = plain.locator(".attention svg title")
        playwright.expect(title).to_contain_text("attention of . on the tokens before it")
        playwright.expect(page.locator("#comparison svg title")).to_contain_text("base the")
        page.get_by_label("Tokens read").focus()
        page.keyboard.press("Home")
        playwright.expect(plain.locator(".said")).to_contain_text("“the”:")
        with page.expect_download() as download:
            plain.get_by_role("link", name="SVG").click()
        picture = Path(download.value.path()).read_text(encoding="utf-8")
        assert "<title>surprisal in bits: the " in picture
        page.goto("about:blank")
    library.close()


def test_downloads(page: Any, one_model: str) -> None:
    page.goto(one_model)
    read(page, SENTENCE)
    files = {}
    for name in ("SVG", "TSV", "JSON"):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        files[name] = Path(download.value.path()).read_text(encoding="utf-8")
        assert download.value.suggested_filename.endswith(f".{name.lower()}")
    assert files["SVG"].startswith("<svg")
    assert files["TSV"].splitlines()[2].startswith("2\tdog\t")
    assert json.loads(files["JSON"])["sentence"]["text"] == SENTENCE


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("the cat is here .", "expected words of the vocabulary, found 'cat' at character 5"),
        ("<img src=x onerror=alert(1)>", "found '<img' at character 1"),
        ("   ", "expected a sentence, got none"),
    ],
)
def test_errors_are_shown_as_text(page: Any, one_model: str, sentence: str, message: str) -> None:
    page.goto(one_model)
    read(page, "the dog")
    page.get_by_label("Sentence").fill(sentence)
    page.get_by_label("Sentence").press("Enter")
    playwright.expect(page.get_by_role("status")).to_contain_text(message)
    assert page.locator("img").count() == 0
    read(page, "she is here .")


def test_tags_in_a_sentence_are_text(page: Any, two_models: str) -> None:
    page.goto(two_models)
    page.get_by_label("Sentence").fill("<b>dog</b> <script>")
    page.get_by_label("Sentence").press("Enter")
    status = page.get_by_role("status").nth(1)
    playwright.expect(status).to_contain_text("log2 p")
    assert page.locator("main b, main script").count() == 0
    shown = page.locator(".figure.tree").nth(1).locator("svg title").text_content()
    assert shown.count("<") == 3


def test_an_address_without_the_token(page: Any, one_model: str) -> None:
    response = page.goto(one_model.partition("?")[0])
    assert response.status == 403
    assert "expected the token" in page.content()


def test_the_keyboard_reaches_everything(page: Any, one_model: str) -> None:
    page.goto(one_model)
    read(page, SENTENCE)
    page.get_by_label("Sentence").focus()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if focused.count():
            reached.append(
                focused.get_attribute("aria-label")
                or focused.get_attribute("class")
                or focused.get_attribute("id")
                or focused.inner_text()
            )
    for name in ("beam", "primary", "Previous token", "play", "Tokens read", "svg", "tsv", "json"):
        assert name in reached, reached
    assert page.locator("button:not([aria-label]):empty").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_screens_light_and_dark(
    browser: Any, one_model: str, scheme: str, tmp_path: Path
) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page = context.new_page()
    page.goto(one_model)
    read(page, SENTENCE)
    width = page.evaluate("() => document.documentElement.scrollWidth")
    assert width <= 360
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    ink = page.evaluate("() => getComputedStyle(document.querySelector('.figure text.ink')).fill")
    brightness = [sum(map(int, re.findall(r"\d+", color)[:3])) / 3 for color in (background, ink)]
    assert (brightness[0] > brightness[1]) == (scheme == "light")
    page.get_by_role("button", name="Theme: system").click()
    page.get_by_role("button", name="Theme: light").click()
    playwright.expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    context.close()
