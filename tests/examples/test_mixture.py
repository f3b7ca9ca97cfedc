"""The example whose mixture changes: killed, edited, resumed on two hosts, and verified."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from killed_programs import KILLER, finish, start, start_hosts

pytestmark = pytest.mark.slow
EXAMPLE = Path(__file__).parents[2] / "examples" / "mixture"


def test_a_run_that_changes(tmp_path: Path) -> None:
    def program(name: str, *arguments: str) -> list[str]:
        return [str(EXAMPLE / name), *arguments]

    (tmp_path / "killer.py").write_text(KILLER)
    finish(start(tmp_path, program("write_texts.py", "texts"), {}))
    mixture = tmp_path / "texts" / "mix.yaml"
    text = (EXAMPLE / "mix.yaml").read_text()
    mixture.write_text(text)
    train = program("train.py", "texts/mix.yaml", "run", "120")
    killed = start(tmp_path, ["killer.py", *train], {})
    first = finish(killed, killed=True)
    assert killed.returncode == -signal.SIGKILL

    mixture.write_text(text.replace("weight: 3", "weight: 1") + "      - {path: names, weight: 2}\n")
    second, other = map(finish, start_hosts(tmp_path, train, 2))
    assert "step" not in other
    steps = [re.findall(r"^step (\d+): (.*)$", output, re.MULTILINE) for output in (first, second)]
    assert [int(step) for step, _ in steps[0]] == [10, 20, 30, 40, 50]
    assert [int(step) for step, _ in steps[1]] == [50, 60, 70, 80, 90, 100, 110, 120]
    assert "names" not in steps[0][-1][1]
    losses = {name: float(loss) for name, loss in re.findall(r"(\w+) ([\d.]+)", steps[1][-1][1])}
    assert {*losses} == {"code", "docs", "names"}
    assert max(losses.values()) < 4.5

    verified = finish(start(tmp_path, program("verify.py", "texts/mix.yaml", "run"), {}))
    assert verified.endswith("nothing repeated, nothing lost\n")
    assert re.findall(r"^step (\d+), ([^:]+):", verified, re.MULTILINE) == [
        ("40", "mix.yaml"),
        ("60", "shares by loss"),
        ("80", "broken shard"),
    ]
    assert re.findall(r"^(\w+): \d+ samples, complete passes of \[(\d+, \d+)", verified, re.MULTILINE) == [
        ("code", "200, 200"),  # without the broken shard
        ("docs", "240, 240"),
        ("names", "240, 240"),
    ]
    broken = re.search(r"^excluded: (\d+) uses, all before step 80$", verified, re.MULTILINE)
    assert broken is not None
    assert int(broken[1]) > 40
