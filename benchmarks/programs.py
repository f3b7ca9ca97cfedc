"""Contenders by the kind of program, as the tables name them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender


def ours(call: str, name: str = "ours", **arguments: Any) -> Contender:
    """One of `loaders.py`'s measurements of energon-grain."""
    arguments = {"programs": "benchmarks.ours", **arguments}
    return Contender(name=name, module="loaders", call=call, arguments=arguments)


def energon(call: str, name: str = "energon", **arguments: Any) -> Contender:
    """The same measurement of Megatron-Energon."""
    arguments = {"programs": "benchmarks.peers.energon", **arguments}
    return Contender(name=name, module="loaders", call=call, arguments=arguments, in_peer_python=True)


def peer(name: str, module: str, call: str, **arguments: Any) -> Contender:
    """A call of a module in `peers/`."""
    return Contender(name=name, module=f"peers.{module}", call=call, arguments=arguments, in_peer_python=True)


def importing(name: str, *modules: str, in_peer_python: bool = False) -> Contender:
    """The time that some imports take."""
    call, arguments = "import_time", {"modules": modules}
    return Contender(name=name, module="loaders", call=call, arguments=arguments, in_peer_python=in_peer_python)


def floor(name: str, call: str, **arguments: Any) -> Contender:
    """A bare loop."""
    return Contender(name=name, module="floor", call=call, arguments=arguments)


def grain(
    cache: Path, data: str, span: dict[str, Any], *, image: bool = False, mixed: bool = False, side: int = 0
) -> Sequence[Contender]:
    """Grain + ArrayRecord at its defaults and in the variants that bench well ("tuned" is the best of them)."""
    plain = str(cache / f"{data}.grain_array_record.uncompressed")
    default = str(cache / f"{data}.grain_array_record.default")
    common = {**span, "image": image, "mixed": mixed, "side": side}
    variants: dict[str, dict[str, Any]] = {
        "0 threads": {"threads": 0},
        "0 threads, 2 processes": {"threads": 0, "workers": 2},
        "batch first, 0 threads": {"threads": 0, "batch_first": True},
        "batch first, 0 threads, 2 processes": {"threads": 0, "batch_first": True, "workers": 2},
    }
    tuned = [
        peer(f"grain tuned: {name}", "grain_array_record", "throughput", folder=plain, **common, **options)
        for name, options in variants.items()
    ]
    defaults = peer("grain default", "grain_array_record", "throughput", folder=plain if image else default, **common)
    return [defaults, *tuned]
