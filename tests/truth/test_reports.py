"""The command, its results on disk, and what is written from them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from benchmarks.truth import chart, report
from benchmarks.truth.adapter import CLAIMS, Run
from benchmarks.truth.checks import CHECKS
from benchmarks.truth.run import Outcome, kept, loaders

REPOSITORY = Path(__file__).parents[2]
TRUTH = REPOSITORY / "benchmarks" / "truth"
ABOUT = {"name": "some", "version": "1.0", "page": "https://example.org", "settings": "none", "claims": []}


def outcome(check: str, values: list[dict[str, float]], failed: int = 0) -> Outcome:
    found = Outcome("some", check, claimed=True, histories=len(values) + failed, failed=failed)
    found.add(values)
    return found


def test_the_command_writes_results(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.truth", "--loader", "lists", "--check", "resume", "--check", "audit"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    arguments = ["--histories", "2", "--results", str(tmp_path)]
    ended = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=True)
    assert "| lists  | exact 2 of 2 |" in ended.stdout
    document = json.loads((tmp_path / "lists.json").read_text())
    assert document["checks"]["audit"]["exact"] == 2
    ((about, outcomes),) = kept(tmp_path)
    assert about["name"] == "lists"
    assert set(outcomes) == {"resume", "audit"}


def test_cells_state_what_was_counted() -> None:
    clean = {"repeated": 0, "lost": 0, "own_repeated": 0, "own_lost": 0}
    bad = {"repeated": 4, "lost": 30, "own_repeated": 0, "own_lost": 0}
    found = outcome("resume", [clean] * 2 + [bad], failed=1)
    assert report.cell(found) == "exact 2 of 4; repeated 0 (0–4), lost 0 (0–30); 1 of 4 failed"
    assert report.short(found) == "50 %"
    assert report.short(outcome("resume", [clean] * 999 + [bad])) == "99 %"  # never rounded up to all
    assert report.short(outcome("resume", [clean] * 3)) == "100 %"
    assert report.cell(outcome("mixture", [{**clean, "share_error": 1.25}])) == "exact 1 of 1; share error 1.2"
    assert report.cell(outcome("audit", [{"which": 1.0}, {"which": 0.6}])) == "which: 80 % right"
    times = {"seconds_100": 0.1, "seconds_10000": 0.2, "seconds_1000000": 2.0, "bytes_1000000": 500.0}
    assert report.cell(outcome("restart", [times])) == "0.100 s / 0.200 s / 2.000 s; 500 bytes"
    assert report.short(outcome("restart", [times])) == "2 s"
    repeated = {"batches": 0, "randoms": 3, "steps": 9}
    assert (
        report.cell(outcome("repeatability", [repeated]))
        == "again: batches equal in 1 of 1; again: randoms equal in 0 of 1"
    )
    assert report.short(Outcome("some", "packs", claimed=False)) == "–"


def test_pages_and_pictures_have_all_loaders() -> None:
    clean = {"repeated": 0, "lost": 0, "own_repeated": 0, "own_lost": 0}
    outcomes = {"resume": outcome("resume", [clean]), "packs": Outcome("some", "packs", claimed=False)}
    page = report.page([(ABOUT, outcomes)])
    assert all(f"### {check}" in page for check in CHECKS)
    assert "https://example.org" in page
    texts = ["".join(text.itertext()) for text in ET.fromstring(chart.picture([(ABOUT, outcomes)])).iter() if text.text]
    assert {"some", "100", "–", "resume", "elastic", "restart"} <= {text.strip() for text in texts}


def test_what_is_published_is_that_of_the_results() -> None:
    results = list(kept(TRUTH / "results"))
    assert {about["name"] for about, _ in results} >= {"energon-grain-jax", "energon-grain-torch"}
    again = "write it again: python -m benchmarks.truth --publish"
    assert (TRUTH / "RESULTS.md").read_text() == report.page(results), again
    assert (TRUTH / "table.md").read_text() == report.short_table(results), again
    assert chart.PICTURE.read_text() == chart.picture(results), again


@pytest.mark.parametrize("loader", [*loaders(), "lists"])
def test_adapters_are_short_and_documented(loader: str) -> None:
    source = (TRUTH / "loaders" / f"{loader}.py").read_text()
    assert len(source.splitlines()) <= 150
    assert (TRUTH / "loaders" / "requirements" / f"{loader}.txt").exists()
    claimed = re.search(r"claims = (frozenset\(.*?\))\n", source, re.DOTALL)
    names = set(re.findall(r'"(\w+)"', claimed[1])) if claimed else set()
    assert names <= set(CLAIMS)


def test_runs_survive_the_pipe() -> None:
    from benchmarks.truth.checks.restart import CHECK
    from benchmarks.truth.history import Rules, draw
    from benchmarks.truth.play import run_of

    history = draw(3, Rules(mixture=True, pack=True))
    run = run_of(history, history.parts[0], Path("data"))
    document: Any = json.loads(json.dumps(run.to_json()))
    assert Run.from_json(document) == run
    assert CHECK.most == 3
