"""The page of `energon-grain preview --html` in a browser: without network, with sound, by keyboard, on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from preview_data import SCRIPT, make_media

import energon_grain

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser, and is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")

OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required", "--mute-audio"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_media(tmp_path_factory.mktemp("browser"))
    energon_grain.preview(folder / "mix.yaml", samples=18).save(folder / "page.html")
    return folder / "page.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


_FOCUSED = "document.activeElement.innerText || document.activeElement.id || ''"


class Opened:
    """A page, with what it asked the network for and what its console said."""

    def __init__(self, browser: Any, file: Path, width: int) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900})
        self.requests: list[str] = []
        self.said: list[str] = []
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE_S)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.context.route("**/*", self._note)
        self.page.goto(file.as_uri())

    def _note(self, route: Any) -> None:
        address = route.request.url
        if address.startswith("file:"):
            route.continue_()
            return
        self.requests.append(address)
        route.abort()

    def focused(self) -> str:
        """What has the focus, as its text or name."""
        return self.page.evaluate(_FOCUSED)

    def wait_for_focus(self, text: str) -> None:
        """Wait until something has it: what a dialog does when it closes comes a little later than the key."""
        self.page.wait_for_function(f"text => ({_FOCUSED}) === text", arg=text)


@pytest.fixture(params=[1280, 375], ids=["desktop", "phone"])
def opened(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[Opened]:
    opened = Opened(browser, file, request.param)
    yield opened
    assert opened.requests == []
    assert opened.said == []
    assert opened.page.title() == "mix.yaml"  # no script of the data ran
    opened.context.close()


def visible_cards(page: Any) -> int:
    return page.locator("#grid > .card:visible").count()


def test_it_fits_and_shows_what_is_there(opened: Opened) -> None:
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert visible_cards(page) == 18
    assert page.locator("#count").inner_text() == "18 shown"
    assert page.get_by_text(SCRIPT).first.is_visible()
    page.locator("#grid img").evaluate_all(
        "images => Promise.all(images.map(image => (image.loading = 'eager', image.decode())))"
    )
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert page.locator(".bar rect").count() == 2
    assert page.locator(".chart rect").count() > 2


def test_without_scripts_all_is_there(browser: Any, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file.as_uri())
    assert visible_cards(page) == 18
    assert not page.locator("#find").is_visible()  # nor is there anything else that would do nothing
    context.close()


def test_sound_and_video_play(opened: Opened) -> None:
    for kind in ("audio", "video"):
        media = opened.page.locator(f"#grid {kind}").first
        media.evaluate("media => media.play()")
        handle = media.element_handle()
        opened.page.wait_for_function("media => media.currentTime > 0.1 && media.readyState >= 2", arg=handle)
        assert media.evaluate("media => media.error") is None
        assert abs(media.evaluate("media => media.duration") - (1 if kind == "audio" else 2)) < 0.2
        media.evaluate("media => media.pause()")


def test_filters(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("button", name="captions/train").click()
    assert visible_cards(page) == 6
    assert page.locator("#count").inner_text() == "6 of 18 shown"
    assert page.locator("rect.off").count() > 0
    page.get_by_role("button", name="captions/train").click()
    page.get_by_role("button", name="mp4", exact=True).click()
    assert visible_cards(page) == 2
    page.get_by_role("button", name="does not decode").click()
    assert visible_cards(page) == 0
    assert page.locator("#none").is_visible()
    page.get_by_role("button", name="mp4", exact=True).click()
    page.locator("#find").fill("K<B>05")
    assert visible_cards(page) == 1


def test_by_keyboard(opened: Opened) -> None:
    """Tab goes through all that can be done, and shows where it is; arrows go from sample to sample."""
    page = opened.page
    stops: list[str] = []
    for _ in range(12):
        page.keyboard.press("Tab")
        stops.append(opened.focused())
        assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth) >= 2"), stops
    assert "<u>media</u>" in stops[0]
    assert "captions/train" in stops[1]
    assert stops[2] == "find"
    assert stops[3] == "bin"

    page.keyboard.press("/")
    page.keyboard.press("/")
    opened.wait_for_focus("find")
    page.locator(".open").first.focus()
    page.keyboard.press("ArrowRight")
    second = page.locator(".open").nth(1).inner_text()
    opened.wait_for_focus(second)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    below = page.evaluate("getComputedStyle(grid).gridTemplateColumns.split(' ').length")
    opened.wait_for_focus(page.locator(".open").nth(below).inner_text())

    page.locator(".open").first.focus()
    page.keyboard.press("Enter")
    page.locator("dialog").wait_for(state="visible")
    assert page.locator("dialog h3").inner_text() == page.locator("#grid .open").first.inner_text()
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")
    page.keyboard.press("ArrowRight")
    page.locator("dialog h3", has_text=second).wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="hidden")
    opened.wait_for_focus(second)


@pytest.mark.parametrize("width", [1280, 375])
def test_two_steps_are_two_columns(browser: Any, file: Path, tmp_path: Path, width: int) -> None:
    """Side by side at any width; filters apply to both; a card opens with its decoded fields."""
    page_file = tmp_path / "steps.html"
    energon_grain.preview(file.parent / "mix.yaml", step=4, beside=2, batch_size=6).save(page_file)
    opened = Opened(browser, page_file, width)
    page = opened.page
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".step").all_inner_texts() == ["Step 4", "Step 2"]
    sides = [page.locator(f"#grid > .card.{side}") for side in ("left", "right")]
    assert [side.count() for side in sides] == [6, 6]
    boxes = [[card.bounding_box() for card in side.all()] for side in sides]
    assert {box["x"] for box in boxes[0]} != {box["x"] for box in boxes[1]}
    assert max(box["x"] + box["width"] for box in boxes[0]) <= min(box["x"] for box in boxes[1])
    assert [box["y"] for box in boxes[0]] == [box["y"] for box in boxes[1]]
    assert page.locator("table.counts").first.locator("thead th").all_inner_texts() == [
        "Samples by dataset",
        "step 4",
        "step 2",
    ]
    page.get_by_role("button", name="captions/train").click()
    shown = visible_cards(page)
    assert 0 < shown < 12
    page.locator("#grid > .card:visible .open").first.click()
    page.locator("dialog .decoded", has_text="float32").first.wait_for()
    assert (opened.requests, opened.said) == ([], [])
    opened.context.close()


def test_in_a_notebook(browser: Any, file: Path, tmp_path: Path) -> None:
    """The same page in a frame of another one: it works there, and cannot reach what is around it."""
    frame = energon_grain.preview(file.parent / "media")._repr_html_()
    around = tmp_path / "around.html"
    around.write_text(f"<!doctype html><meta charset=utf-8><title>mix.yaml</title>{frame}", encoding="utf-8")
    opened = Opened(browser, around, 1000)
    inside = opened.page.frame_locator("iframe")
    inside.get_by_role("button", name="wav", exact=True).click()
    inside.locator("#count", has_text="2 of 12 shown").wait_for()
    inside.locator(".open:visible").first.click()
    inside.locator("dialog").wait_for(state="visible")
    assert (opened.requests, opened.said, opened.page.title()) == ([], [], "mix.yaml")
    opened.context.close()
