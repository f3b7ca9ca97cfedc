# SPDX-License-Identifier: Apache-2.0
"""The outermost node: the settings of a run."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from energon_grain.datasets.dataset import SavableDataset, put
from energon_grain.datasets.lowering import IndexPart, Lowering, Part, Settings, Steps
from energon_grain.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class SeededDataset(SavableDataset):
    """Seed and lanes of a run.

    Attributes:
        seed: Seed of every random choice below.
        lanes: L; None: lcm(48, hosts), or fewer for finite passes that pack or group.
        same_pass: Whether every pass repeats the first (validation).
    """

    dataset: SavableDataset
    seed: int = 0
    lanes: int | None = None
    same_pass: bool = False

    def __post_init__(self) -> None:
        if self.lanes is not None:
            if not hasattr(self.lanes, "__index__") or self.lanes < 1:
                raise ConfigError(f"lanes={self.lanes!r}: expected a positive number")
            put(self, lanes=operator.index(self.lanes))

    def on_steps(self, steps: Steps) -> SavableDataset | None:
        steps.seed = self.settings.key
        steps.same_pass = self.same_pass
        return self.dataset

    def lower(self, to: Lowering) -> Part:
        part = to.lower(self.dataset, seed=self.settings.key)
        if isinstance(part, IndexPart):
            part.same_pass = part.same_pass or self.same_pass
        return part

    @property
    def settings(self) -> Settings:
        """The settings for the engine."""
        offset = self.worker_config.seed_offset
        return Settings(seed=self.seed, seed_offset=offset, lanes=self.lanes, same_pass=self.same_pass)

    def __repr__(self) -> str:
        return repr(self.dataset)
