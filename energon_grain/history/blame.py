# SPDX-License-Identifier: Apache-2.0
"""Ranking samples, shards and datasets by how much of a run's unusual losses they explain.

Every loss becomes a residual against the run's own trend (`history.trend`). The residuals of the steps that used a
sample add up to its score, and `history.chance` says how often chance gives such a score. Which samples a step used is
arithmetic; where filters, groups, packs or drops decide, only the most unusual steps are made again.

A step's loss alone cannot say which of the step's samples is responsible: later passes, losses of single
samples, or a look at them distinguish these. A sure sample explains the residuals of its steps, so these no
longer count for the other samples of the steps (forward selection).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.errors import ConfigError
from energon_grain.history.bulk_draws import DrawnSteps, check_not_skipped, draw_steps, items_of
from energon_grain.history.chance import Chance, Tail
from energon_grain.history.leaf_of import leaf_names
from energon_grain.history.losses import Losses
from energon_grain.history.ranking import Evidence, rank_groups, rank_samples
from energon_grain.history.suspects import Blame, Spike
from energon_grain.history.tally import Samples, datasets_of, shards_of
from energon_grain.history.trend import CAP, compressed, residuals, residuals_of_items
from energon_grain.history.which import is_arithmetic, which_of_steps
from energon_grain.stream.passes import Progress
from energon_grain.stream.run import Run, StepSamples

FloatArray: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
_MOST_DRAWS = 1 << 24
"""Samples that are counted. Of longer runs, the steps with the highest residuals are, and some for comparison."""
_PROBED = 4096
_REPLAYED = 24
_LEAST_ITEMS = 200
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
        steps: Rank the samples of these steps of the losses only. Default: the whole curve.
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Signal:
    """Residuals of the steps that are shown, cut off at `CAP`; 0 for other steps.

    Attributes:
        of_step: For each leaf, (t,) residuals of steps. Leaves without losses of their own share one array.
        own: Leaves with losses of their own.
        by_item: The first item of each logged step, and the residuals of all items, `compressed` instead of cut off;
            None: only steps have losses.
    """

    of_step: Sequence[FloatArray]
    own: frozenset[int]
    by_item: tuple[Int64Array, FloatArray] | None

    @classmethod
    def of(cls, run: Run, losses: Losses, logged: FloatArray, owner: Int64Array, shown: BoolArray) -> _Signal:
        """The residuals of losses. `shown`: (n,) which logged steps; `owner`: (t,) logged step of each step."""

        def of_steps(values: FloatArray) -> FloatArray:
            return np.where(shown, np.clip(values, -CAP, CAP), 0.0)[owner]

        overall = of_steps(logged)
        own = {
            leaf: of_steps(np.where(np.isfinite(part), residuals(part, losses.steps), 0.0))
            for leaf, part in _parts_of_leaves(run, losses).items()
        }
        return cls(
            of_step=[own.get(leaf, overall) for leaf in range(len(run.spec.leaves))],
            own=frozenset(own),
            by_item=None if losses.samples is None else _of_items(losses, shown),
        )

    def of_samples(self, drawn: DrawnSteps, inquiry: _Inquiry, items: Int64Array) -> FloatArray:
        """The residual of each sample of some steps. `items`: (t,) number of items of each step."""
        if self.by_item is not None:
            return _residuals_of_items(drawn, inquiry, items, *self.by_item)
        if not self.own:
            return self.of_step[0][drawn.steps][drawn.row]
        found = np.empty(len(drawn.row))
        for leaf, values in enumerate(self.of_step):
            at = np.flatnonzero(drawn.leaf == leaf)
            found[at] = values[drawn.steps[drawn.row[at]]]
        return found

    def tail(self) -> Tail | None:
        """The tail of the residuals of items, if there are enough of them."""
        enough = self.by_item is not None and len(self.by_item[1]) >= _LEAST_ITEMS
        return Tail(self.by_item[1]) if self.by_item is not None and enough else None

    def chances(self, counted: Int64Array) -> list[Chance]:
        """For each leaf, if only some steps are counted."""
        if self.by_item is not None:
            return [Chance(self.by_item[1])] * len(self.of_step)
        found: dict[int, Chance] = {}
        for values in {id(each): each for each in self.of_step}.values():
            seen = np.zeros(len(values))
            seen[counted] = values[counted]
            found[id(values)] = Chance(seen)
        return [found[id(values)] for values in self.of_step]


@dataclass(slots=True, kw_only=True, eq=False)
class _Inquiry:
    """A run and its losses.

    Attributes:
        losses: As logged.
        logged: (n,) residual of each logged step, not cut off.
        steps: (t,) steps of the loader, ascending.
        owner: (t,) the logged step of each.
        only: (t,) steps to be explained; None: all of them.
    """

    run: Run
    now: Progress
    dropped: bool
    losses: Losses
    logged: FloatArray
    steps: Int64Array
    owner: Int64Array
    only: BoolArray | None

    @classmethod
    def of(
        cls, run: Run, now: Progress, losses: Losses, dropped: bool, only: Sequence[int] | None, lag: int, mean_of: int
    ) -> _Inquiry:
        steps, owner = _loader_steps(losses.steps, lag, mean_of)
        check_not_skipped(now, steps)
        return cls(
            run=run,
            now=now,
            dropped=dropped,
            losses=losses,
            logged=residuals(losses.values, losses.steps),
            steps=steps,
            owner=owner,
            only=None if only is None else _selected(losses.steps, only)[owner],
        )

    def answer(self, most: int) -> Blame:
        """Count, and rank."""
        leaves = self.run.spec.leaves
        of_samples, of_groups = self._signals()
        source = self._pieces(of_samples)
        samples, shards, datasets = Samples(leaves), shards_of(leaves), datasets_of(leaves)
        if of_groups.by_item is None:
            shards.keep(len(source.counted))
        for drawn in source.pieces(source.counted):
            residual, probed = of_samples.of_samples(drawn, self, source.items), source.probed[drawn.steps]
            samples.add(drawn, residual)
            if of_groups is not of_samples:
                residual = of_groups.of_samples(drawn, self, source.items)
            shards.add(drawn, residual, probed)
            datasets.add(drawn, residual, probed)
        uses = datasets.uses if source.whole else datasets.uses * (len(self.steps) / len(source.counted))
        for_samples, for_groups = (self._evidence(signal, source, uses) for signal in (of_samples, of_groups))
        return Blame(
            steps=len(self.losses.steps),
            spikes=self._spikes(),
            samples=rank_samples(for_samples, samples, most, self.only),
            shards=rank_groups(for_groups, shards, "shard", most),
            datasets=rank_groups(for_groups, datasets, "dataset", len(leaves)),
            notes=[*self._notes(), *source.notes],
            replayed=source.replayed,
        )

    def _signals(self) -> tuple[_Signal, _Signal]:
        """Residuals that samples are ranked by, and shards and datasets.

        If only some steps are to be explained, their samples are ranked by the other steps that used them, or by their
        own losses; shards and datasets by these steps alone.
        """
        every = np.ones(len(self.logged), np.bool_)
        if self.only is None:
            found = _Signal.of(self.run, self.losses, self.logged, self.owner, every)
            return found, found
        shown = np.zeros(len(self.logged), np.bool_)
        shown[self.owner[self.only]] = True
        others = every if self.losses.samples is not None else ~shown
        return (
            _Signal.of(self.run, self.losses, self.logged, self.owner, others),
            _Signal.of(self.run, self.losses, self.logged, self.owner, shown),
        )

    def _evidence(self, signal: _Signal, source: _Pieces, uses: FloatArray) -> Evidence:
        spikes = np.flatnonzero(self.logged[self.owner] >= _SPIKE if self.only is None else self.only)
        return Evidence(
            leaves=self.run.spec.leaves,
            names=_unique_names(self.run),
            steps=self.steps,
            counted=source.counted,
            probed=int(source.probed.sum()),
            whole=source.whole,
            pieces=source.pieces,
            residuals=lambda drawn: signal.of_samples(drawn, self, source.items),
            of_step=None if signal.by_item is not None else signal.of_step,
            chances=signal.chances(source.counted),
            tail=signal.tail(),
            uses=uses,
            uncut=np.minimum(self.logged[self.owner], 1e6),
            spikes=spikes,
            own=signal.own,
        )

    def _notes(self) -> list[str]:
        found: list[str] = []
        beyond = int((self.steps >= self.now.step).sum())
        if beyond:
            found.append(
                f"{beyond:,} of the steps are behind the state (step {self.now.step:,}): their samples are those of a "
                f"run that goes on unchanged."
            )
        broken = int((~np.isfinite(self.losses.values)).sum())
        if broken:
            found.append(f"{broken:,} losses are not finite; the first of several in a row counts as a spike.")
        if self.losses.repeated:
            found.append(f"{self.losses.repeated:,} losses were replaced by later ones of the same step.")
        if not any(leaf.order.shuffle for leaf in self.run.spec.leaves):
            found.append("The run is not shuffled: samples that are always used together get one score.")
        return found

    def _pieces(self, signal: _Signal) -> _Pieces:
        high = np.max(np.stack(list({id(each): each for each in signal.of_step}.values())), axis=0)
        if self.only is not None:
            high[self.only] = np.inf
        if is_arithmetic(self.run, self.now, int(self.steps[0]), dropped=self.dropped):
            return _drawn_pieces(self, high)
        return _replayed_pieces(self, high)

    def _spikes(self) -> list[Spike]:
        """The logged steps with the highest residuals, in the order of steps."""
        shown = self.logged >= _SPIKE
        if self.only is not None:
            shown = np.zeros(len(self.logged), np.bool_)
            shown[self.owner[self.only]] = True
        high = np.flatnonzero(shown)
        high = np.sort(high[np.argsort(-self.logged[high], kind="stable")][:100])
        return [
            Spike(step=int(self.losses.steps[at]), loss=float(self.losses.values[at]), residual=float(self.logged[at]))
            for at in high.tolist()
        ]


def _residuals_of_items(
    drawn: DrawnSteps, inquiry: _Inquiry, items: Int64Array, first: Int64Array, values: FloatArray
) -> FloatArray:
    """The residual of each sample from the losses of items, which are in the order of hosts."""
    hosts = inquiry.run.share.hosts
    owners = inquiry.owner[drawn.steps]
    length, count = first[owners + 1] - first[owners], items[drawn.steps]
    wrong = np.flatnonzero((length < count) | (length % hosts > 0))
    if len(wrong):
        step = int(inquiry.losses.steps[owners[wrong[0]]])
        raise ConfigError(
            f"step {step} has {int(length[wrong[0]])} losses of samples, but {int(count[wrong[0]])} items on "
            f"{hosts} hosts: expected one loss for each item, gathered from all hosts"
        )
    place = drawn.item % hosts * (length // hosts)[drawn.row] + drawn.item // hosts
    return values[first[owners][drawn.row] + place]


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


def _unique_names(run: Run) -> list[str]:
    """The name of each leaf, or its key where another leaf has the same last part of the path."""
    names = leaf_names(run.spec)
    last = [name.rpartition("/")[2] for name in names]
    keys = ["/".join(leaf.key) for leaf in run.spec.leaves]
    return [name if last.count(part) == 1 else key for name, part, key in zip(names, last, keys, strict=True)]


def _names(key: Sequence[str]) -> Iterator[str]:
    """The names of a dataset: the parts of its key, and the last part of its path."""
    for part in filter(None, key[1:-1]):
        yield part
        yield part.rstrip("/").rpartition("/")[2]


def _of_items(losses: Losses, shown: BoolArray) -> tuple[Int64Array, FloatArray]:
    """The first item of each step, and the residual of each item."""
    assert losses.samples is not None
    sizes = np.array([len(each) for each in losses.samples], np.int64)
    found = np.maximum(compressed(np.concatenate(residuals_of_items(losses.samples, losses.values))), -CAP)
    return np.append(0, np.cumsum(sizes)), np.where(np.repeat(shown, sizes), found, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pieces:
    """The samples of the steps of a run.

    Attributes:
        counted: The steps to count, as indices.
        probed: (t,) whether a step shows how often samples are used.
        whole: Whether all steps are counted.
        items: (t,) number of items of each step; of steps that are not counted, anything.
        pieces: The samples of steps, piece by piece.
        notes: Limits of the answer, for the user.
        replayed: Whether steps were made again.
    """

    counted: Int64Array
    probed: npt.NDArray[np.bool_]
    whole: bool
    items: Int64Array
    pieces: Callable[[Int64Array], Iterator[DrawnSteps]]
    notes: list[str]
    replayed: bool = False


def _drawn_pieces(inquiry: _Inquiry, high: FloatArray) -> _Pieces:
    """The samples by arithmetic. `high`: (t,) the residuals by which steps are chosen, if there are too many."""
    items = items_of(inquiry.run, inquiry.now, inquiry.steps)
    count = len(inquiry.steps)
    probed, notes = np.ones(count, np.bool_), list[str]()
    counted = np.arange(count)
    if int(items.count.sum()) > _MOST_DRAWS:
        probed[:] = False
        probed[np.unique(np.linspace(0, count - 1, min(count, _PROBED)).astype(np.int64))] = True
        order = np.argsort(-high, kind="stable")
        affordable = max(1, int(np.searchsorted(np.cumsum(items.count[order]), _MOST_DRAWS)))
        counted = np.union1d(order[:affordable], np.flatnonzero(probed))
        notes = [f"The {len(counted) / count:.0%} of steps with the highest losses were counted."]

    def pieces(wanted: Int64Array) -> Iterator[DrawnSteps]:
        return draw_steps(inquiry.run, items, wanted)

    return _Pieces(
        counted=counted, probed=probed, whole=len(counted) == count, items=items.count, pieces=pieces, notes=notes
    )


def _replayed_pieces(inquiry: _Inquiry, high: FloatArray) -> _Pieces:
    """The samples of the steps with the highest residuals, and of as many others, from making steps again."""
    count = len(inquiry.steps)
    order = np.argsort(-high, kind="stable")
    unusual = np.sort(order[: min(_REPLAYED, count)])
    unusual = unusual[high[unusual] > _UNUSUAL]
    if not len(unusual):
        unusual = order[:1]
    last = int(unusual[-1])
    plain = np.setdiff1d(np.unique(np.linspace(0, last, 2 * _REPLAYED).astype(np.int64)), unusual)
    counted = np.union1d(unusual, plain)
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
            f"The samples of a step depend on the steps before it, so only {len(unusual)} unusual steps and "
            f"{len(plain)} others were looked at; the steps up to {inquiry.steps[last]:,} were {how}."
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
