"""The newcomer pages in Chromium, on a desktop and on a phone: nothing is cut, nothing comes from the network."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

from energon_grain._version import __version__

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser, and is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
    pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="mkdocs-material is not installed"),
]

REPOSITORY = Path(__file__).parents[2]
OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--allow-file-access-from-files"),
]
PAGES = (
    "",
    "tutorial/",
    "train-with-jax/",
    "train-with-pytorch/",
    "your-data/",
    "mix-datasets/",
    "resume/",
    "why/",
)
# The first words of each element that is wider inside than outside, and of each that goes beyond the window.
_CUT = """tags => [...document.querySelectorAll(tags)]
    .filter(each => each.scrollWidth > each.clientWidth + 1)
    .map(each => each.tagName + ': ' + each.innerText.slice(0, 80))"""
_BEYOND = """tags => [...document.querySelectorAll(tags)]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1)
    .map(each => each.tagName + ': ' + (each.innerText || each.alt).slice(0, 80))"""
_SCROLLS = """() => [...document.querySelectorAll('article pre code, .md-typeset__scrollwrap')]
    .filter(each => each.scrollWidth > each.clientWidth + 1)
    .every(each => ['auto', 'scroll'].includes(getComputedStyle(each).overflowX))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=REPOSITORY, check=True, env=environment, timeout=PATIENCE_S)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def opened(request: pytest.FixtureRequest, browser: Any, site: Path) -> Iterator[Any]:
    """A page at a width; what it asks the network for is an error."""
    name, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, asked = context.new_page(), []
    page.set_default_timeout(1000 * PATIENCE_S)
    page.on("request", lambda sent: None if sent.url.startswith(("file:", "data:")) else asked.append(sent.url))
    page.goto((site / name / "index.html").as_uri())
    page.evaluate("Promise.all([...document.images].map(each => (each.loading = 'eager', each.decode())))")
    yield page
    context.close()
    assert asked == []


def at(width: int, names: tuple[str, ...] = PAGES) -> Any:
    cases = [pytest.param((name, width), id=name.strip("/") or "front") for name in names]
    return pytest.mark.parametrize("opened", cases, indirect=True)


@at(1280)
def test_nothing_is_cut_on_a_desktop(opened: Any) -> None:
    assert opened.evaluate(_CUT, "html, article pre code, .md-typeset__scrollwrap") == []
    assert opened.evaluate(_BEYOND, "article *") == []
    assert opened.locator("article pre code, article table").count() > 0


@at(390)
def test_nothing_is_cut_on_a_phone(opened: Any) -> None:
    """Code and tables scroll; the page does not."""
    assert opened.evaluate(_CUT, "html") == []
    assert opened.evaluate(_BEYOND, "article img, article p, article li, article pre, .md-typeset__scrollwrap") == []
    assert opened.evaluate(_SCROLLS)


@at(1280, ("",))
def test_the_front_page(opened: Any) -> None:
    tops = opened.evaluate(
        "[...document.querySelectorAll('article img')].map(each => each.getBoundingClientRect().top)"
    )
    install = opened.locator("#install").bounding_box()["y"]
    assert sum(top < install for top in tops) == 3, "resuming, speed and truth are above the installation"
    assert len(tops) == 5
    assert __version__ in opened.locator("header .md-source").inner_text()
    assert opened.locator("header .md-source").get_attribute("href").startswith("https://github.com/")


def test_the_changelog_is_not_searched(site: Path) -> None:
    places = {
        entry["location"].partition("/")[0]
        for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert "changelog" not in places
    assert {"tutorial", "resume", "why", "reference"} <= places
