"""What a newcomer meets beside the code blocks: pictures, links, paths, and the files of a published project."""

from __future__ import annotations

import json
import re
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import draw_packages
import pytest
import yaml

from benchmarks import chart

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PICTURES = sorted((DOCS / "images").glob("*.svg"))
OUTSIDE_THE_SITE = [
    *REPOSITORY.glob("*.md"),
    *(REPOSITORY / "examples").rglob("*.md"),
    *REPOSITORY.glob("examples/notebooks/*.ipynb"),
]
SVG = "{http://www.w3.org/2000/svg}"


def pages() -> str:
    return "".join(page.read_text() for page in [*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")])


def project() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def drawn(picture: Path) -> list[str]:
    """The texts in a picture."""
    return ["".join(text.itertext()) for text in ET.parse(picture).iter(f"{SVG}text")]


def test_the_chart_is_that_of_the_results() -> None:
    assert chart.CHART.read_text() == chart.chart(chart.RESULTS.read_text()), (
        "`python -m benchmarks.chart` draws it anew"
    )


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_is_shown_and_needs_nothing_else(picture: Path) -> None:
    assert re.search(rf"!\[[^\]]{{20,}}\]\([\w/.]*images/{picture.name}\)", pages()), (
        "no page shows it, with a text in its place"
    )
    links = [value for node in ET.parse(picture).iter() for name, value in node.items() if name.endswith("href")]
    assert not links


@pytest.mark.parametrize("page", OUTSIDE_THE_SITE, ids=lambda page: page.name)
def test_links_of_pages_outside_of_the_site_lead_somewhere(page: Path) -> None:
    """mkdocs looks at those inside."""
    text = page.read_text()
    if page.suffix == ".ipynb":
        text = "".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", text):
        assert (page.parent / target).exists(), target


def paths_in(text: str) -> set[str]:
    """Paths of the repository that are written as code."""
    return set(re.findall(r"`((?:energon_grain|adapters|tests|benchmarks|examples|docs)/[\w./-]+)`", text))


def test_paths_on_pages_exist() -> None:
    assert [path for path in sorted(paths_in(pages())) if not (REPOSITORY / path).exists()] == []


def test_the_architecture_page_keeps_to_its_figures() -> None:
    """From YAML to an open source at most 12 files, from a position to a batch at most 16."""
    _, to_source, to_batch, *_ = re.split(r"^\*\*From .*$", (DOCS / "architecture.md").read_text(), flags=re.MULTILINE)
    for text, most in ((to_source, 12), (to_batch, 16)):
        steps = re.findall(r"^\d+\. (.*)$", text, re.MULTILINE)
        assert len(steps) <= most
        assert all(len(paths_in(step)) == 1 for step in steps)


def test_the_packages_that_are_drawn_are_those_that_there_are() -> None:
    assert draw_packages.PICTURE.read_text(encoding="utf-8") == draw_packages.draw(), "run tests/draw_packages.py"


def test_workflows_run_what_the_project_says() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    versions = set(job["strategy"]["matrix"]["python"])
    prefix = "Programming Language :: Python :: 3."
    classified = {line.rpartition(" ")[2] for line in project()["classifiers"] if line.startswith(prefix)}
    assert classified <= versions
    assert project()["requires-python"] == f">={min(versions, key=lambda version: int(version.split('.')[1]))}"
    (script,) = [step["run"] for step in job["steps"] if "run" in step]
    assert (REPOSITORY / script).stat().st_mode & 0o111, script


def test_yaml_of_the_project_is_yaml() -> None:
    files = [*REPOSITORY.glob(".github/**/*.yml"), REPOSITORY / ".readthedocs.yaml", REPOSITORY / "CITATION.cff"]
    assert all(yaml.safe_load(file.read_text()) for file in files)
    assert len(files) >= 6


def test_the_container_copies_what_there_is() -> None:
    let_in = {line.removeprefix("!") for line in (REPOSITORY / ".dockerignore").read_text().splitlines()}
    copies = re.findall(r"^COPY (.+) \S+$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    for path in (path for line in copies for path in line.split()):
        assert (REPOSITORY / path).exists(), path
        assert path.partition("/")[0] in let_in, path


def test_pages_name_the_extras_that_there_are() -> None:
    table = (DOCS / "index.md").read_text().partition("## Extras\n")[2]
    named = set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE))
    assert named | {"jax", "torch"} == set(project()["optional-dependencies"])
