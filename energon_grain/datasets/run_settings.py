"""The outermost node: what makes a description one particular run."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

from energon_grain.datasets.dataset import SavableDataset, datasets_below
from energon_grain.datasets.lowering import IndexPart, Lowering, Part, Steps
from energon_grain.errors import ConfigError
from energon_grain.samplers.hashing import fold


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings(SavableDataset):
    """Seed and lanes of a run.

    Attributes:
        seed: Of every random choice below.
        lanes: L; None: lcm(48, hosts), or fewer for finite passes that pack or group.
        same_pass: Every pass is the first one again (validation).
    """

    dataset: SavableDataset
    seed: int = 0
    lanes: int | None = None
    same_pass: bool = False

    def __post_init__(self) -> None:
        if self.lanes is not None:
            if not hasattr(self.lanes, "__index__") or self.lanes < 1:
                raise ConfigError(f"lanes={self.lanes!r}: a positive number is meant")
            object.__setattr__(self, "lanes", operator.index(self.lanes))

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        """See `SavableDataset.on_steps`."""
        steps.seed = self.key
        steps.same_pass = self.same_pass
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        """See `SavableDataset.lower`."""
        part = to.lower(self.dataset, seed=self.key)
        if isinstance(part, IndexPart):
            part.same_pass = part.same_pass or self.same_pass
        return part

    @property
    def key(self) -> int:
        """64-bit hash of the seed."""
        return fold(self.seed, self.worker_config.seed_offset)

    def __repr__(self) -> str:
        return repr(self.dataset)


def settings_of(dataset: SavableDataset) -> RunSettings:
    """Seed and lanes of a run: of the outermost settings, or of those of the parts that it is put together from.

    Raises:
        ConfigError: The parts contradict each other.
    """
    outermost = next(_all_settings(dataset), None)
    if outermost is None:
        return RunSettings(worker_config=dataset.worker_config, dataset=dataset)
    said = {each.lanes for each in _all_settings(dataset)} - {None}
    node: SavableDataset | None = dataset
    while node is not None and not isinstance(node, RunSettings):
        node = getattr(node, "dataset", None)
    if isinstance(node, RunSettings) and node.lanes is not None:
        said = {node.lanes}
    if len(said) > 1:
        raise ConfigError(
            f"datasets with lanes={sorted(lanes for lanes in said if lanes)} in one stream: lanes are a constant of "
            f"the run; give all parts the same number"
        )
    whole = isinstance(node, RunSettings)
    return RunSettings(
        worker_config=outermost.worker_config if whole else dataset.worker_config,
        dataset=dataset,
        seed=outermost.seed,
        lanes=next(iter(said), None),
        same_pass=all(each.same_pass for each in _all_settings(dataset)),
    )


def _all_settings(node: SavableDataset) -> Iterator[RunSettings]:
    """All settings in a graph, the outermost first, from left to right."""
    if isinstance(node, RunSettings):
        yield node
    for child in datasets_below(node):
        yield from _all_settings(child)
