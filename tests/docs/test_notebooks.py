"""Notebooks stay short and clean: few cells, no outputs, no words of the list. `test_code_blocks` runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import words

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").rglob("*.ipynb"))
MOST_CELLS = 12


def test_every_goal_has_a_notebook() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == [
        "find_the_sample_behind_a_spike",
        "finetune_vlm_torch",
        "mix_by_tokens_and_pack",
        "resume_on_other_hosts",
        "train_jax_tars",
    ]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_is_short_and_has_no_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    assert len(cells) <= MOST_CELLS
    assert cells[0]["cell_type"] == cells[-1]["cell_type"] == "markdown"
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_text_of_a_notebook_uses_no_listed_word(
    notebook: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    page = tmp_path / f"{notebook.stem}.md"
    page.write_text("\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"))
    status = words.main([str(page)])
    assert status == 0, capsys.readouterr().out
