"""Every code block in README, docs and notebooks runs, page by page, in an empty folder.

What a block is, by its language:

* `python` and `bash` run, in the order of the page; the python blocks of a page share one namespace.
* A block with `title="some/file.py"` is a file: it is written before the blocks after it run.
* `json`, `yaml` and `toml` must parse.
* `console` and `text` show what a terminal shows; they are the only blocks that nothing checks.

Another language, or none, fails: a typing error must not switch a check off. A comment `<!-- before: … -->` holds
python that runs unseen, for pages whose reader has a dataset already. The cells of a notebook are python. A file that a
page includes by `--8<--` is a part of it.

The pages of documentation that this library follows are quoted in `pages_of_others/` and run too, with nothing changed
but the import and the paths.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from page_code import CodeBlock, blocks_of, code_blocks
from program_server import ProgramServer, serving

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "examples").rglob("*.ipynb")),
]
PAGES_OF_OTHERS = sorted((Path(__file__).parent / "pages_of_others").glob("*.md"))
SHOWN_ONLY = {"console", "text"}
Readers = Callable[[str], ProgramServer]

NEW_IMPORT = "from energon_grain_torch import"
REWRITES = {
    r"from megatron\.energon import": NEW_IMPORT,
    r"^energon (?=prepare)": "energon-grain ",
    r"'/((?:my|path)/)": r"'\1",
    # Training never ends; here it does.
    r"^for (\w+) in (loader|train_loader|val_loader):": r"for \1, _ in zip(\2, range(3)):",
}
SLIPS = {
    "blending": {
        "WeightedCaptioningTaskEncoder(sample_weight": "WeightedCaptioningTaskEncoder(tokenizer, sample_weight",
        "(sample.image, sample.text)": "(sample.images, sample.text)",
    }
}
"""What is wrong on the pages themselves, with any library: a missing argument, and a field that is called otherwise."""


def run_page(page: Path) -> None:
    """Run a page's blocks in the current folder."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks_of(page):
        if block.title is not None:
            target = Path(block.title)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.code)
        elif block.language == "python":
            shifted = "\n" * (block.line - 1) + block.code  # so that a traceback names the line of the page
            exec(compile(shifted, page, "exec"), namespace)
        elif block.language == "bash":
            print(f"{page}:{block.line}: bash", flush=True)
            subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], check=True)


def page_name(page: Path) -> str:
    """The page as the tests' ids name it."""
    return str(page.relative_to(REPOSITORY))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_blocks_have_a_known_language_and_data_parses(page: Path) -> None:
    parsers = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}
    for block in blocks_of(page):
        place = f"{page_name(page)}:{block.line}"
        assert block.language in {"python", "bash", *parsers, *SHOWN_ONLY}, f"{place}: language {block.language!r}"
        if block.language in parsers:
            parsers[block.language](block.code)


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    """Run pages in forks of a process that has imported what the page asks for, and no other backend.

    TensorStore, which JAX's checkpoints bring, cannot be used in a fork.
    """
    names = {
        "arrays": ("energon_grain",),
        "torch": ("energon_grain_torch:get_train_dataset", "torch.utils.data"),
        "jax": ("jax", "energon_grain:get_savable_loader", "energon_grain:get_train_dataset"),
    }
    with ExitStack() as stack:
        made = {
            kind: stack.enter_context(serving(*names[kind], environment={"JAX_PLATFORMS": "cpu"})) for kind in names
        }

        def reader(code: str) -> ProgramServer:
            of_torch = re.search(r"^(from|import) \w*torch\b", code, re.MULTILINE)
            return made["arrays" if ".zarr" in code else "torch" if of_torch else "jax"]

        yield reader


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_page_runs(page: Path, tmp_path: Path, readers: Readers) -> None:
    code = [block.code for block in blocks_of(page) if block.language in {"python", "bash"}]
    if code:
        check_page_runs(readers("\n".join(code)), page, tmp_path)


def check_page_runs(reader: ProgramServer, page: Path, tmp_path: Path) -> None:
    """Run a page in an empty folder below `tmp_path`, in a process of its own."""
    folder = tmp_path / "page"
    folder.mkdir()
    path = os.pathsep.join([str(command_folder(tmp_path)), os.environ["PATH"]])
    status, output = reader.run(Path(__file__), folder, page, environment={"PATH": path})
    assert status == 0, f"{page} does not run:\n{output[-6000:]}"


@pytest.mark.parametrize("page", PAGES_OF_OTHERS, ids=lambda page: page.stem)
def test_a_page_runs_as_written(page: Path, tmp_path: Path, readers: Readers) -> None:
    text = page.read_text()
    for pattern, replacement in REWRITES.items():
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    for wrong, right in SLIPS.get(page.stem, {}).items():
        assert wrong in text
        text = text.replace(wrong, right)
    assert NEW_IMPORT in text
    rewritten = tmp_path / page.name
    rewritten.write_text(text)
    check_page_runs(readers(text), rewritten, tmp_path)


def command_folder(folder: Path) -> Path:
    """A folder with the command `energon-grain` of this repository, whether or not it is installed."""
    command = folder / "bin" / "energon-grain"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m energon_grain.cli "$@"\n')
    command.chmod(0o755)
    return command.parent


def test_blocks_are_found_and_told_apart() -> None:
    page = textwrap.dedent(
        """\
        <!-- before: x = 1 -->
        ```python
        y = 2
        ```

        * a list
            ```yaml title="a/b.yaml"
            key: value
            ```
        ````text
        ```python
        ````
        """
    )
    assert list(code_blocks(page)) == [
        CodeBlock("python", None, " x = 1 ", 1, unseen=True),
        CodeBlock("python", None, "y = 2\n", 3),
        CodeBlock("yaml", "a/b.yaml", "key: value\n", 8),
        CodeBlock("text", None, "```python\n", 11),
    ]


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
