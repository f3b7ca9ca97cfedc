"""What planned packs, and batches by budget, are bounded by: arguments, which `energon_grain.planning` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from energon_grain.datasets.dataset import put
from energon_grain.errors import ConfigError
from energon_grain.samplers.expression import Expression
from energon_grain.tracebacks import public

Oversize = Literal["error", "split", "drop", "alone"]
DEFAULT_WINDOW = 16_384


@public
@dataclass(frozen=True, slots=True, init=False)
class PackingPlan:
    """What goes into packs that are planned from columns, before anything is read.

    Args:
        costs: The column that a pack is bounded by, or an expression over columns (`"tokens + 2"`); or several, each
            with its capacity: `{"tokens": 4096, "images": 8}`.
        capacity: Of a pack, where there is one cost.
        window: Samples of the order that are planned together. A larger one fills packs better, up to a point; the
            first batch waits for the plan of one, and samples move by up to as many places.
        oversize: What becomes of a sample that is larger than a pack. "error", the default: it ends the run. "split":
            parts of it, by the first cost, go to neighbouring packs, and the packing hook is told which (`ranges`).
            "drop": it is left out, and nothing of it is read. "alone": it has a pack for itself, over the capacity.
        max_samples: Samples of a pack at most.

    Raises:
        ConfigError: An argument is not one that fits here.
    """

    capacities: tuple[tuple[str, int], ...]
    window: int
    oversize: Oversize
    max_samples: int | None

    def __init__(
        self,
        costs: str | Mapping[str, int],
        capacity: int | None = None,
        *,
        window: int = DEFAULT_WINDOW,
        oversize: Oversize = "error",
        max_samples: int | None = None,
    ) -> None:
        name = type(self).__name__
        if isinstance(costs, Mapping) == (capacity is not None) or not costs:
            raise ConfigError(
                f'{name}: give one cost and its capacity, such as {name}("tokens", 4096), or several with theirs: '
                f'{name}({{"tokens": 4096, "images": 8}}); these are {costs!r} and {capacity!r}'
            )
        pairs = list(costs.items()) if isinstance(costs, Mapping) else [(costs, capacity)]
        texts = [Expression.parse(text, where=name).text for text, _ in pairs]
        numbers = [_positive(name, f"capacity of {text}", limit) for text, (_, limit) in zip(texts, pairs, strict=True)]
        if oversize not in ("error", "split", "drop", "alone"):
            raise ConfigError(f"{name}: oversize={oversize!r}: expected 'error', 'split', 'drop' or 'alone'")
        most = None if max_samples is None else _positive(name, "max_samples", max_samples)
        capacities = tuple(zip(texts, numbers, strict=True))
        put(self, capacities=capacities, window=_positive(name, "window", window), oversize=oversize, max_samples=most)

    def described(self) -> str:
        """In one line: what a pack holds."""
        return ", ".join(f"{text} up to {capacity:,}" for text, capacity in self.capacities)


@public
class CostBudget(PackingPlan):
    """A batch size as a budget: `batch_size=CostBudget("tokens", 65536)` makes batches of as many samples as fit.

    Each batch of a host costs `budget` at most, and nearly as much; batches are planned as packs are, from columns,
    and never padded. Arguments are those of `PackingPlan`, but samples cannot be split.
    """

    __slots__ = ()

    def __init__(
        self,
        costs: str | Mapping[str, int],
        budget: int | None = None,
        *,
        window: int = DEFAULT_WINDOW,
        oversize: Oversize = "error",
        max_samples: int | None = None,
    ) -> None:
        if oversize == "split":
            raise ConfigError("CostBudget: a sample of a batch cannot be split: give 'error', 'drop' or 'alone'")
        PackingPlan.__init__(self, costs, budget, window=window, oversize=oversize, max_samples=max_samples)


def _positive(where: str, what: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 1 <= value < 1 << 53:
        raise ConfigError(f"{where}: {what} is {value!r}: expected a positive whole number")
    return int(value)
