"""How far a stream has come."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Segment = tuple[int, int, int, int, int]
"""(step, pass, pass step, item, G): from this step on, batches of G items follow each other from this item."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Progress:
    """A place between two steps.

    Attributes:
        step: Steps delivered since the start of the run.
        pass_number: Pass that the next step belongs to (finite streams: also the pass over the data).
        pass_step: Steps delivered in this pass.
        item: Number, in the pass of a finite stream or in the endless stream, of the next item.
        drops: (lanes of this host,) samples dropped so far, in this pass or in the endless stream.
        lanes: State of each of this host's lanes, where lanes have a program; None: nothing was made yet.
        ended: Whether the pass is over, so that the next iteration begins another one.
        history: Where each run of equal steps began. It begins at step 0, or where it last became impossible to tell
            earlier places from the steps alone.
        skipped: (first step, steps) of each range that was jumped over.
    """

    step: int = 0
    pass_number: int = 0
    pass_step: int = 0
    item: int = 0
    drops: npt.NDArray[np.int64]
    lanes: tuple[Any, ...] | None = None
    ended: bool = False
    history: tuple[Segment, ...] = ()
    skipped: tuple[tuple[int, int], ...] = ()

    def forgetting(self, global_batch: int) -> Progress:
        """The same place with a history that begins here."""
        segment = (self.step, self.pass_number, self.pass_step, self.item, global_batch)
        return dataclasses.replace(self, history=(segment,))

    def without(self, steps: int) -> Progress:
        """The same place, the last steps not counted."""
        return dataclasses.replace(self, step=self.step - steps, pass_step=self.pass_step - steps)
