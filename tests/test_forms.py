"""Forms: documents of one type, read for the first time in many threads at once."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import energon_grain
import energon_grain_torch
from energon_grain.forms import Form

PACKAGES = Path(energon_grain.__file__).parent, Path(energon_grain_torch.__file__).parent
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py") if path.name != "__main__.py")

FIRST_USES = """
import importlib
import sys
import threading
import time
from threading import Barrier, Thread

import msgspec

from energon_grain.forms import Form

THREADS = 8
types = {
    id(form.of): form.of
    for module in sys.argv[1:]
    for value in vars(importlib.import_module(module)).values()
    for form in ([value] if isinstance(value, Form) else [])
}
barrier = Barrier(THREADS)


def use(kind, number):
    document = {name: None for name in getattr(kind, "__struct_encode_fields__", ())}
    encoded = msgspec.json.encode(document)
    barrier.wait()
    time.sleep(number * 1e-3)  # some come while others are at it
    for use in (lambda: msgspec.json.decode(encoded, type=kind), lambda: msgspec.convert(document, kind)):
        try:
            use()
        except msgspec.ValidationError:
            pass  # what matters is that the process lives


sys.setswitchinterval(1e-6)
threading.setprofile(lambda *_: time.sleep(1e-4))  # whoever runs Python code while it describes a type lets others in
for kind in types.values():
    threads = [Thread(target=use, args=(kind, number)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(types))
"""


def uses_of_msgspec(path: Path) -> list[str]:
    """Places in a module where msgspec is given a type."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "msgspec":
            found.append(f"{path}:{node.lineno}: import msgspec as a whole, so that its uses can be found")
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith("msgspec."):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        typed = len(node.args) > (name == "decode") or bool(node.keywords)
        if name == "convert" or (name in ("decode", "Decoder") and typed) or "schema" in name:
            found.append(f"{path}:{node.lineno}: {ast.unparse(node)}")
    return found


def names_of_modules_with_forms() -> list[str]:
    names: list[str] = []
    for path in MODULES:
        (package,) = (package for package in PACKAGES if path.is_relative_to(package))
        if path != PACKAGES[0] / "forms.py" and "Form(" in path.read_text(encoding="utf-8"):
            names.append(".".join(path.relative_to(package.parent).with_suffix("").parts))
    return names


def test_threads_that_read_a_type_for_the_first_time_do_not_end_the_process() -> None:
    modules = names_of_modules_with_forms()
    done = subprocess.run([sys.executable, "-c", FIRST_USES, *modules], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= len(modules) > 10


def test_types_reach_msgspec_through_forms_alone() -> None:
    assert [use for path in MODULES if path != PACKAGES[0] / "forms.py" for use in uses_of_msgspec(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        "msgspec.json.decode(data, type=int)",
        "msgspec.convert(data, int)",
        "msgspec.msgpack.Decoder(int)",
        "from msgspec.json import decode",
    ],
)
def test_uses_of_msgspec_are_found(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(f"import msgspec\n{line}\n", encoding="utf-8")
    assert len(uses_of_msgspec(tmp_path / "module.py")) == 1


def test_json_that_only_python_writes_is_read() -> None:
    form = Form(dict[str, float | str])
    assert form.from_json(b'{"a": Infinity, "b": "\\udc80"}') == {"a": float("inf"), "b": "\udc80"}
    with pytest.raises(msgspec.DecodeError, match="UTF-8"):
        form.from_json(b'{"a": "\xff"}')
    with pytest.raises(msgspec.DecodeError, match="malformed"):
        form.from_json(b'{"a": NaN')
    with pytest.raises(msgspec.ValidationError):
        form.from_json(b'{"a": NaN, "b": []}')
