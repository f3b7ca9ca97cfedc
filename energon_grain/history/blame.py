# SPDX-License-Identifier: Apache-2.0
"""Ranking samples, shards and datasets by how much of a run's unusual losses they explain.

Every loss becomes a residual against the run's own trend (`history.trend`). The residuals of the steps that used a
sample add up to its score, and `history.chance` says how often chance gives such a score. Which samples a step used is
arithmetic; where filters, groups, packs or drops decide, only the most unusual steps are made again.

A step's loss alone cannot say which of the step's samples is responsible: the samples of one pass are told apart by
later passes, by the losses of single samples, or by eye. A sure sample explains the residuals of its steps, so these no
longer count for the other samples of the steps (forward selection).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.history.bulk_draws import DrawnSteps, check_not_skipped, draw_steps, items_of
from energon_grain.history.chance import Chance
from energon_grain.history.losses import Losses
from energon_grain.history.ranking import Evidence, rank_groups, rank_samples
from energon_grain.history.suspects import Blame, Spike
from energon_grain.history.tally import Samples, datasets_of, shards_of
from energon_grain.history.trend import CAP, residuals, standardised_together
from energon_grain.history.which import is_arithmetic, which_of_steps
from energon_grain.stream.passes import Progress
from energon_grain.stream.run import Run, StepSamples

FloatArray: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
_MOST_DRAWS = 1 << 26
"""Samples that are counted. Of longer runs, the steps with the highest residuals are, and some for comparison."""
_PROBED = 4096
_REPLAYED = 24
_SPIKE = 3.0
_UNUSUAL = 1.0


def blame(
    run: Run,
    now: Progress,
    losses: Any,
    *,
    dropped: bool,
    steps: Sequence[int] | None = None,
    lag: int = 0,
    mean_of: int = 1,
    most: int = 10,
) -> Blame:
    """Rank samples, shards and datasets by how much of the unusual losses of a run they explain.

    Args:
        run: The running stream, and what it knows of the past.
        now: Current place of the stream.
        losses: `Losses`, a file of them, or a mapping of step to loss; see `history.losses`.
        dropped: Whether this stream is known to have dropped something.
        steps: Only explain these steps. Default: the whole curve.
        lag: Number of the first batch in the losses: 0; or 1, if the trainer counts steps from 1.
        mean_of: Number of steps that each loss is the mean of: the step and those before it.
        most: Number of samples, and of shards, to return.

    Returns:
        The suspects; see `Blame`.

    Raises:
        ConfigError: The losses have too few steps, or values that do not fit the steps.
        StateError: A step does not exist, or it cannot be known which samples it used.
    """
    return _Inquiry.of(run, now, Losses.of(losses), dropped, steps, lag, mean_of).answer(most)


@dataclass(slots=True, kw_only=True, eq=False)
class _Inquiry:
    """The residuals of a run, and its steps.

    Attributes:
        losses: As logged.
        logged: (n,) residual of each logged step, not cut off.
        steps: (t,) steps of the loader, ascending.
        owner: (t,) the logged step of each.
        residual: (t,) residual of each step, cut off; 0 where it is not to be explained.
        of_leaf: By leaf, residuals from its own losses, as `residual`.
        by_item: Residuals of items: (first of each step, residuals); None: only steps have losses.
        only: Whether only some steps are to be explained.
    """

    run: Run
    now: Progress
    dropped: bool
    losses: Losses
    logged: FloatArray
    steps: Int64Array
    owner: Int64Array
    residual: FloatArray
    of_leaf: dict[int, FloatArray]
    by_item: tuple[Int64Array, FloatArray] | None
    only: bool
    notes: list[str] = field(default_factory=list[str])

    @classmethod
    def of(
        cls, run: Run, now: Progress, losses: Losses, dropped: bool, only: Sequence[int] | None, lag: int, mean_of: int
    ) -> _Inquiry:
        steps, owner = _loader_steps(losses.steps, lag, mean_of)
        check_not_skipped(now, steps)
        logged = residuals(losses.values, losses.steps)
        shown = np.ones(len(logged), np.bool_) if only is None else _selected(losses.steps, only)

        def of_steps(values: FloatArray) -> FloatArray:
            cut = np.clip(values, -CAP, CAP)
            return np.where(shown, cut, 0.0)[owner]

        found = cls(
            run=run,
            now=now,
            dropped=dropped,
            losses=losses,
            logged=logged,
            steps=steps,
            owner=owner,
            residual=of_steps(logged),
            of_leaf={
                leaf: of_steps(np.where(np.isfinite(part), residuals(part, losses.steps), 0.0))
                for leaf, part in _parts_of_leaves(run, losses).items()
            },
            by_item=None if losses.samples is None else _of_items(losses, shown),
            only=only is not None,
        )
        found._note()
        return found

    def _note(self) -> None:
        beyond = int((self.steps >= self.now.step).sum())
        if beyond:
            self.notes.append(
                f"{beyond:,} steps are behind the state (step {self.now.step:,}): their samples are those of a run "
                f"that goes on unchanged."
            )
        broken = int((~np.isfinite(self.losses.values)).sum())
        if broken:
            self.notes.append(f"{broken:,} losses are not finite; the first of several in a row counts as a spike.")
        if self.losses.repeated:
            self.notes.append(f"{self.losses.repeated:,} losses were replaced by later ones of the same step.")
        if not self.run.spec.endless and not any(leaf.order.shuffle for leaf in self.run.spec.leaves):
            self.notes.append("The run is not shuffled, so the chances below assume an order that it does not have.")

    def answer(self, most: int) -> Blame:
        """Count, and rank."""
        leaves = self.run.spec.leaves
        source = self._pieces()
        samples, shards, datasets = Samples(leaves), shards_of(leaves), datasets_of(leaves)
        for drawn in source.pieces(source.counted):
            residual = self._residuals(drawn, source)
            probed = source.probed[drawn.steps]
            samples.add(drawn, residual)
            shards.add(drawn, residual, probed)
            datasets.add(drawn, residual, probed)
        evidence = Evidence(
            leaves=leaves,
            steps=self.steps,
            counted=source.counted,
            probed=int(source.probed.sum()),
            whole=source.whole,
            pieces=source.pieces,
            residuals=lambda drawn: self._residuals(drawn, source),
            of_step=None if self.by_item is not None else [self._of_leaf(leaf) for leaf in range(len(leaves))],
            chances=self._chances(source),
            uses=datasets.uses if source.whole else datasets.uses * (len(self.steps) / len(source.counted)),
            spikes=np.flatnonzero(self.residual != 0 if self.only else self.residual >= _SPIKE),
            own=frozenset(self.of_leaf),
        )
        return Blame(
            steps=len(self.losses.steps),
            spikes=self._spikes(),
            samples=rank_samples(evidence, samples, most),
            shards=rank_groups(evidence, shards, "shard")[:most],
            datasets=rank_groups(evidence, datasets, "dataset"),
            notes=[*self.notes, *source.notes],
            replayed=source.replayed,
        )

    def _of_leaf(self, leaf: int) -> FloatArray:
        return self.of_leaf.get(leaf, self.residual)

    def _chances(self, source: _Pieces) -> list[Chance]:
        """The chances of each leaf."""
        counted = np.zeros(len(self.steps), np.bool_)
        counted[source.counted] = True
        if self.by_item is not None:
            return [Chance(self.by_item[1])] * len(self.run.spec.leaves)
        overall = Chance(np.where(counted, self.residual, 0.0))
        own = {leaf: Chance(np.where(counted, values, 0.0)) for leaf, values in self.of_leaf.items()}
        return [own.get(leaf, overall) for leaf in range(len(self.run.spec.leaves))]

    def _residuals(self, drawn: DrawnSteps, source: _Pieces) -> FloatArray:
        """The residual of each sample of some steps."""
        if self.by_item is not None:
            return self._of_samples(drawn, source, *self.by_item)
        found = self.residual[drawn.steps][drawn.row]
        for leaf, values in self.of_leaf.items():
            own = np.flatnonzero(drawn.leaf == leaf)
            found[own] = values[drawn.steps[drawn.row[own]]]
        return found

    def _of_samples(self, drawn: DrawnSteps, source: _Pieces, first: Int64Array, values: FloatArray) -> FloatArray:
        """The residual of each sample from the losses of items, which are in the order of hosts."""
        hosts = self.run.share.hosts
        owners = self.owner[drawn.steps]
        length = first[owners + 1] - first[owners]
        count = source.items[drawn.steps]
        wrong = np.flatnonzero((length < count) | (length % hosts > 0))
        if len(wrong):
            step = int(self.losses.steps[owners[wrong[0]]])
            raise ConfigError(
                f"step {step} has {int(length[wrong[0]])} losses of samples, but {int(count[wrong[0]])} items on "
                f"{hosts} hosts: expected one loss for each item, gathered from all hosts"
            )
        place = drawn.item % hosts * (length // hosts)[drawn.row] + drawn.item // hosts
        return values[first[owners][drawn.row] + place]

    def _pieces(self) -> _Pieces:
        if is_arithmetic(self.run, self.now, int(self.steps[0]), dropped=self.dropped):
            return _drawn_pieces(self)
        return _replayed_pieces(self)

    def _spikes(self) -> list[Spike]:
        """The logged steps with the highest residuals, in the order of steps."""
        shown = np.zeros(len(self.logged), np.bool_)
        shown[self.owner[self.residual != 0]] = True
        high = np.flatnonzero(shown if self.only else shown & (self.logged >= _SPIKE))
        high = np.sort(high[np.argsort(-self.logged[high], kind="stable")][:100])
        return [
            Spike(step=int(self.losses.steps[at]), loss=float(self.losses.values[at]), residual=float(self.logged[at]))
            for at in high
        ]


def _loader_steps(steps: Int64Array, lag: int, mean_of: int) -> tuple[Int64Array, Int64Array]:
    """The steps of the loader that losses are of, and the loss of each."""
    if mean_of < 1:
        raise ConfigError(f"mean_of={mean_of}: expected the number of steps that each loss is the mean of, at least 1")
    if len(steps) > 1 and mean_of > int(np.diff(steps).min()):
        near = int(np.argmin(np.diff(steps)))
        raise ConfigError(
            f"mean_of={mean_of}: the losses of steps {int(steps[near])} and {int(steps[near + 1])} are closer than "
            f"that, so a step would be in both; give the distance between logged steps, or 1"
        )
    found = steps[:, None] - lag + np.arange(1 - mean_of, 1)
    owner = np.broadcast_to(np.arange(len(steps))[:, None], found.shape)
    kept = found >= 0
    if not kept.any(axis=1).all():
        raise ConfigError(f"lag={lag}: step {int(steps[0])} of the losses would be a step before the first one, 0")
    return found[kept], owner[kept]


def _selected(steps: Int64Array, only: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Which logged steps are to be explained. Raises ConfigError if none of them is."""
    found = np.isin(steps, np.array(list(only), np.int64))
    if not found.any():
        raise ConfigError(
            f"the losses have none of the steps {min(only, default=0)} to {max(only, default=0)}; they have "
            f"{int(steps[0])} to {int(steps[-1])}"
        )
    return found


def _parts_of_leaves(run: Run, losses: Losses) -> dict[int, FloatArray]:
    """The losses of single datasets, by leaf."""
    names = [{"/".join(filter(None, leaf.key[1:-1])), *_names(leaf.key)} for leaf in run.spec.leaves]
    return {number: part for name, part in losses.parts.items() for number, own in enumerate(names) if name in own}


def _names(key: Sequence[str]) -> Iterator[str]:
    """What a dataset may be called: the parts of its key, and the last part of its path."""
    for part in filter(None, key[1:-1]):
        yield part
        yield part.rstrip("/").rpartition("/")[2]


def _of_items(losses: Losses, shown: npt.NDArray[np.bool_]) -> tuple[Int64Array, FloatArray]:
    """The first item of each step, and the residual of each item."""
    assert losses.samples is not None
    sizes = np.array([len(each) for each in losses.samples], np.int64)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    found = standardised_together(np.concatenate(losses.samples), owner, losses.values)
    return np.append(0, np.cumsum(sizes)), np.where(shown[owner], np.clip(found, -CAP, CAP), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pieces:
    """The samples of the steps of a run.

    Attributes:
        counted: The steps to count, as indices.
        probed: (t,) whether a step is one of those that show how often samples are used.
        whole: Whether all steps are counted.
        items: (t,) number of items of each step; of steps that are not counted, anything.
        pieces: The samples of steps, piece by piece.
        notes: What a user should know about it.
        replayed: Whether steps were made again.
    """

    counted: Int64Array
    probed: npt.NDArray[np.bool_]
    whole: bool
    items: Int64Array
    pieces: Callable[[Int64Array], Iterator[DrawnSteps]]
    notes: list[str]
    replayed: bool = False


def _drawn_pieces(inquiry: _Inquiry) -> _Pieces:
    """The samples by arithmetic."""
    residual = inquiry.residual if inquiry.by_item is None else np.ones(len(inquiry.steps))
    items = items_of(inquiry.run, inquiry.now, inquiry.steps)
    total = int(items.count.sum())
    count = len(inquiry.steps)
    probed = np.zeros(count, np.bool_)
    if total <= _MOST_DRAWS and not inquiry.only:
        probed[:] = True
        counted, notes = np.arange(count), list[str]()
    else:
        probed[np.unique(np.linspace(0, count - 1, min(count, _PROBED)).astype(np.int64))] = True
        order = np.argsort(-np.maximum(residual, 0), kind="stable")
        affordable = int(np.searchsorted(np.cumsum(items.count[order]), _MOST_DRAWS))
        high = order[: max(1, affordable)]
        counted = np.union1d(high[residual[high] > 0], np.flatnonzero(probed))
        used = len(counted) / count
        notes = [] if inquiry.only else [f"The {used:.0%} of steps with the highest losses were counted."]

    def pieces(wanted: Int64Array) -> Iterator[DrawnSteps]:
        return draw_steps(inquiry.run, items, wanted)

    return _Pieces(
        counted=counted, probed=probed, whole=len(counted) == count, items=items.count, pieces=pieces, notes=notes
    )


def _replayed_pieces(inquiry: _Inquiry) -> _Pieces:
    """The samples of the most unusual steps, and of as many others, from making steps again."""
    count = len(inquiry.steps)
    order = np.argsort(-inquiry.residual, kind="stable")
    high = np.sort(order[: min(_REPLAYED, count)])
    high = high[inquiry.residual[high] > (0 if inquiry.only else _UNUSUAL)]
    if not len(high):
        high = order[:1]
    last = int(high[-1])
    plain = np.setdiff1d(np.unique(np.linspace(0, last, 2 * _REPLAYED).astype(np.int64)), high)
    counted = np.union1d(high, plain)
    steps = inquiry.steps[counted].tolist()
    found = which_of_steps(inquiry.run, inquiry.now, steps, dropped=inquiry.dropped)
    drawn = {at: _of_records(inquiry.run, at, found[step]) for at, step in zip(counted.tolist(), steps, strict=True)}
    probed, items = np.zeros(count, np.bool_), np.zeros(count, np.int64)
    probed[plain if len(plain) else counted] = True
    items[counted] = [int(drawn[at].item.max(initial=-1)) + 1 for at in counted.tolist()]
    how = "read and made again" if any(samples.read for samples in found.values()) else "walked through again"
    return _Pieces(
        counted=counted,
        probed=probed,
        whole=False,
        items=items,
        pieces=lambda wanted: (drawn[at] for at in wanted.tolist()),
        notes=[
            f"The samples of a step depend on the steps before it, so only {len(high)} unusual steps and {len(plain)} "
            f"others were looked at; the steps up to {inquiry.steps[last]:,} were {how}."
        ],
        replayed=True,
    )


def _of_records(run: Run, at: int, samples: StepSamples) -> DrawnSteps:
    """The samples of a step, from their records."""
    leaves = {str(leaf.leaf.source.path): number for number, leaf in reversed([*enumerate(run.spec.leaves)])}
    _, item = np.unique(np.array([record.item for record in samples], np.int64), return_inverse=True)
    return DrawnSteps(
        steps=np.array([at]),
        row=np.zeros(len(samples), np.int64),
        item=item,
        leaf=np.array([leaves[str(record.dataset)] for record in samples], np.int32),
        index=np.array([record.index for record in samples], np.int64),
        epoch=np.array([record.epoch for record in samples], np.int64),
    )
