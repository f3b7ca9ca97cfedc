"""Which hooks seed generators of the whole process: they may not run beside the program that iterates.

A hook with `restore_seeds` seeds `random` and its like, and puts them back. In another thread it would do so in the
middle of whatever the training loop draws, and get its numbers; the batches would then depend on the workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from energon_grain.stream.spec import HookSpec, StreamSpec


def stage_seeds_globals(spec: StreamSpec) -> bool:
    """Whether a hook on samples does."""
    hooks = (hook for leaf in spec.leaves for hook in (leaf.cook, *leaf.hooks) if hook is not None)
    return any(hook.restore_seeds for hook in hooks)


def assembly_seeds_globals(spec: StreamSpec) -> bool:
    """Whether a hook that runs where batches are put together does: on batches, groups, packs and items of lanes."""
    batch = () if spec.batch is None else (spec.batch.hook, *spec.batch.encode)
    lanes = () if spec.program is None else _hooks(spec.program.root)
    return any(hook.restore_seeds for hook in (*batch, *lanes))


def _hooks(node: Any) -> Iterator[HookSpec]:
    if isinstance(node, HookSpec):
        yield node
    elif isinstance(node, tuple):
        for part in node:  # pyright: ignore[reportUnknownVariableType]
            yield from _hooks(part)
    elif dataclasses.is_dataclass(node) and not isinstance(node, type):
        for field in dataclasses.fields(node):
            yield from _hooks(getattr(node, field.name))
