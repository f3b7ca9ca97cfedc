"""`make golden`: record today's behaviour anew, after a change that is meant, and print what became different.

The recordings are what tests in this folder compare with. Look at the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from golden import answers, golden_data, states, streams, views
from golden.configurations import CONFIGURATIONS

import energon_grain
import energon_grain_torch
from energon_grain.stream.cursor import ORDER_VERSION

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> Any:
    """A recording, as JSON."""
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def all_streams() -> dict[str, Any]:
    return {
        f"{name}, {hosts} host{'s' * (hosts > 1)}": streams.record_hosts(configuration, energon_grain, hosts)
        for name, configuration in CONFIGURATIONS.items()
        for hosts in configuration.hosts
    }


WHAT: dict[str, Callable[[], Any]] = {
    "files": lambda: answers.files(Path()),
    "commands": answers.commands,
    "map_style": answers.map_style,
    "names": lambda: answers.names(energon_grain),
    "torch_names": lambda: answers.names(energon_grain_torch),
    "streams": all_streams,
    "views": views.views,
}
"""Name of a recording to what makes it, in a folder with the golden data."""


def differences(before: Any, now: Any, place: str = "") -> list[str]:
    """Where two JSON documents differ, and how; `-` before, `+` now."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return sum((differences(before.get(k), now.get(k), f"{place}/{k}") for k in keys), [])
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now) and dict in map(type, now):
        return sum((differences(b, n, f"{place}/{i}") for i, (b, n) in enumerate(zip(before, now, strict=True))), [])
    if isinstance(before, list) and isinstance(now, list) and all(isinstance(x, str) for x in [*before, *now]):
        gone, new = [x for x in before if x not in now], [x for x in now if x not in before]
        if not gone and not new and before != now:
            return [f"{place}: another order"]
        return [*(f"- {place}: {x}" for x in gone), *(f"+ {place}: {x}" for x in new)]
    return [] if before == now else [f"- {place}: {json.dumps(before)}", f"+ {place}: {json.dumps(now)}"]


def main() -> None:
    """Record everything."""
    RECORDED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        golden_data.write_all(Path())
        for name, make in WHAT.items():
            now = json.loads(json.dumps(make()))
            file = RECORDED / f"{name}.json"
            for line in differences(json.loads(file.read_text()) if file.exists() else None, now, name):
                print(line[:300])
            file.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        file = states.STATES / f"order_{ORDER_VERSION}.json"
        if not file.exists():
            file.write_text(json.dumps(states.record_states(energon_grain), indent=1) + "\n", encoding="utf-8")
        os.chdir(RECORDED)


if __name__ == "__main__":
    main()
