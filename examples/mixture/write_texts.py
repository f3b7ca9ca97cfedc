"""Write three datasets of real texts from Python's library: code, docstrings, character names."""

import ast
import random
import sys
import sysconfig
import unicodedata
import warnings
from pathlib import Path

from energon_grain import DatasetWriter

SAMPLES, BAD_SHARD = 240, "code/shard-000002.tar"  # a copy that went wrong


def sources():
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(errors="ignore")


def code():
    for source in sources():
        lines = [line for line in source.splitlines() if line.strip() and "#" not in line]
        yield from ("\n".join(lines[at : at + 8]) for at in range(0, len(lines) - 8, 8))


def docs():
    for source in sources():
        nodes = [
            n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.ClassDef)
        ]
        yield from filter(None, map(ast.get_docstring, nodes))


def names():
    for first in range(0x20, 0x3000, 4):
        found = [unicodedata.name(chr(code), "") for code in range(first, first + 4)]
        yield "\n".join(filter(None, found))


def write(root):
    warnings.simplefilter("ignore")  # some of the library's own strings
    options = {"sample_type": "TextSample", "field_map": {"text": "txt"}, "shard_samples": 40}
    for name, texts in {"code": code(), "docs": docs(), "names": names()}.items():
        long = [text for text in texts if len(text) > 80]
        with DatasetWriter(root / name, **options) as dataset:
            for n, text in enumerate(random.Random(0).sample(long, SAMPLES)):
                if f"{name}/shard-{n // 40:06d}.tar" == BAD_SHARD:
                    text = random.Random(n).randbytes(len(text)).hex()
                dataset({"__key__": f"{n:04d}", "txt": text})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
