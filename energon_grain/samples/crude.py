"""Samples that a cooker has still to turn into typed ones."""

from __future__ import annotations

from typing import Any

from energon_grain.samples.pytree import register_if_jax


class CrudeSample(dict[str, Any]):
    """Decoded parts by part name, with `__key__`, `__shard__` and the other base fields as further entries."""

    __slots__ = ()


register_if_jax(CrudeSample)
