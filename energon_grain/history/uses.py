# SPDX-License-Identifier: Apache-2.0
"""The answers of `when` and `seen`: the uses of samples by a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One use of a sample by a run.

    Attributes:
        key: Key of the sample, as it was asked for.
        dataset: Folder of the leaf.
        leaf: Full key of the leaf, which names it among leaves of the same folder.
        index: Index in the leaf, after split part, subset and `where` are applied.
        epoch: Pass over the leaf.
        position: Position of the sample in the order of the stream, counted over all passes; exact.
        past: Whether the run has used it.
        exact: Whether step, host and place are known. Otherwise they depend on samples that were dropped, or on
            filters, groups or packs.
        step: Step that delivered it, or will; None: not known.
        host: Host that delivers it, with the current number of hosts; None: not known.
        place: Its place in the batch of that host; None: not known.
        pack: Its place in the item, if the item was made from several samples; None: the item is the sample.
        between: If the step is not known: the first and last step that can have delivered it, as far as the known
            places of the run show. The last is None for a later use, and if the lane belongs to another host: then
            `past` is an estimate. A sample that was dropped is in no step.
    """

    key: str
    dataset: str
    leaf: str
    index: int
    epoch: int
    position: int
    past: bool
    exact: bool
    step: int | None = None
    host: int | None = None
    place: int | None = None
    pack: int | None = None
    between: tuple[int, int | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost:
    """The cost of finding the steps of past uses with `replay=True`.

    Attributes:
        first: First step to be made again.
        steps: Number of steps to be made again.
        samples: About how many samples are read and passed to hooks for that; 0: positions suffice.
    """

    first: int
    steps: int
    samples: int


class Uses(list[Use]):
    """The uses of samples, key by key, in the order in which the run delivers them.

    Attributes:
        replay: Cost of `replay=True`; None: the steps of all past uses are known.
        replayed: Whether a replay found them. Samples that it did not find were dropped, and are left out.
        since: First step that the answer covers; not 0 if the run had another configuration before.
    """

    replay: ReplayCost | None = None
    replayed: bool = False
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SeenDataset:
    """How often a run used the samples of one dataset.

    Attributes:
        name: Full key of the leaf.
        dataset: Its folder.
        times: (samples,) int32, times that each sample was used.
        keys: Reads the keys of (n,) samples, int64; None: the data are not available.
    """

    name: str
    dataset: str
    times: npt.NDArray[np.int32]
    keys: Callable[[npt.NDArray[np.int64]], list[str]] | None = field(default=None, repr=False)

    @property
    def uses(self) -> int:
        """Uses of all samples together."""
        return int(self.times.sum(dtype=np.int64))

    @property
    def unused(self) -> int:
        """Samples that were never used."""
        return len(self.times) - int(np.count_nonzero(self.times))


class Seen(list[SeenDataset]):
    """How often a run used the samples of each dataset, in the order of leaves.

    Attributes:
        until: The step before which uses are counted.
        exact: False if hooks dropped samples: these were read and passed over, and are counted, too.
    """

    until: int = 0
    exact: bool = True
