# SPDX-License-Identifier: Apache-2.0
"""From the sums of residuals to suspects, with the chance of each score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.history.bulk_draws import DrawnSteps
from energon_grain.history.chance import Chance
from energon_grain.history.suspects import Suspect
from energon_grain.history.tally import Groups, Residuals, Samples
from energon_grain.stream.spec import LeafSpec

FloatArray: TypeAlias = npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
_CANDIDATES = 2048
_HIGH = 1.0
"""Residuals that a sample can explain."""
_EXPLAINED = 0.01
"""Chance below which a sample explains its steps, so that they no longer count for others."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evidence:
    """Everything that suspects are ranked by, except their sums.

    Attributes:
        leaves: The leaves of the run.
        steps: (t,) the steps of the loader.
        counted: The steps that were counted, as indices.
        probed: Number of steps that show how often samples are used.
        whole: Whether all steps were counted.
        pieces: The samples of steps, piece by piece.
        residuals: The residual of each of them.
        of_step: For each leaf, (t,) residuals of steps; None: items have residuals of their own.
        chances: For each leaf.
        uses: (leaves,) number of uses of the samples of each leaf, over all steps.
        spikes: The steps with a spike, as indices.
        own: Leaves whose samples have losses of their own, so that `of_step` differs from that of others.
    """

    leaves: Sequence[LeafSpec]
    steps: Int64Array
    counted: Int64Array
    probed: int
    whole: bool
    pieces: Callable[[Int64Array], Iterator[DrawnSteps]]
    residuals: Residuals
    of_step: Sequence[FloatArray] | None
    chances: Sequence[Chance]
    uses: FloatArray
    spikes: Int64Array
    own: frozenset[int]


@dataclass(slots=True, eq=False)
class _Candidate:
    """A sample that may be a suspect.

    Attributes:
        leaf: Number of its leaf.
        index: Its index in the leaf.
        uses: Number of its uses.
        score: Sum of its residuals that no suspect before it explains, less their mean.
        highs: Its steps with a high residual, as indices, and these residuals.
    """

    leaf: int
    index: int
    uses: int
    score: float
    highs: dict[int, float] = field(default_factory=dict[int, float])


def rank_samples(evidence: Evidence, samples: Samples, most: int) -> list[Suspect]:
    """The samples that explain most. A sample that is hardly a result of chance explains the residuals of its steps."""
    left = _candidates(evidence, samples)
    _find_steps(evidence, samples, left)
    found: list[Suspect] = []
    while left and len(found) < most:
        logs = _logs(evidence, left)
        ratio = np.array([each.score / np.sqrt(each.uses) for each in left])
        at = int(np.lexsort((-ratio, logs))[0])
        best = left.pop(at)
        chance = float(np.exp(np.minimum(logs[at] + np.log(len(samples)), 700)))
        found.append(_suspect(evidence, best, chance, _tied(evidence, samples, best)))
        if chance < _EXPLAINED and evidence.of_step is not None:
            _explain(left, best)
    return found


def _logs(evidence: Evidence, candidates: Sequence[_Candidate]) -> FloatArray:
    """The log of p of each candidate."""
    found = np.zeros(len(candidates))
    leaf = np.array([each.leaf for each in candidates])
    score = np.array([each.score for each in candidates])
    uses = np.array([each.uses for each in candidates], np.float64)
    for number in np.unique(leaf).tolist():
        own = leaf == number
        found[own] = evidence.chances[number].log_of(score[own], uses[own])
    return found


def _explain(left: Sequence[_Candidate], best: _Candidate) -> None:
    """Take the residuals of a suspect's steps from the other candidates."""
    for each in left:
        for step in each.highs.keys() & best.highs.keys():
            each.score -= each.highs.pop(step)


def _candidates(evidence: Evidence, samples: Samples) -> list[_Candidate]:
    """The samples with the highest scores in each leaf."""
    found: list[_Candidate] = []
    for leaf, score in enumerate(samples.score):
        used = np.flatnonzero(score > 0)
        uses = _uses(evidence, samples, leaf, used)
        own = score[used] - uses * np.float32(evidence.chances[leaf].mean)
        ratio = own / np.sqrt(uses)
        if len(ratio) > _CANDIDATES:
            best = np.argpartition(-ratio, _CANDIDATES)[:_CANDIDATES]
        else:
            best = np.arange(len(ratio))
        best = best[own[best] > 0]
        rows = zip(used[best].tolist(), uses[best].tolist(), own[best].tolist(), strict=True)
        found += [_Candidate(leaf, index, int(count), value) for index, count, value in rows]
    return found


def _uses(evidence: Evidence, samples: Samples, leaf: int, index: Int64Array) -> npt.NDArray[np.float32]:
    """Number of uses of samples: as counted, or if only some steps were, as many as a sample of the leaf may have."""
    counted = samples.uses[leaf][index].astype(np.float32)
    if evidence.whole:
        return np.maximum(counted, 1)
    return np.maximum(counted, np.ceil(evidence.uses[leaf] / max(1, len(samples.uses[leaf]))))


def _find_steps(evidence: Evidence, samples: Samples, candidates: Sequence[_Candidate]) -> None:
    """Find the candidates in the steps with high residuals."""
    tables = [np.zeros(len(score), np.int32) for score in samples.score]
    for number, each in enumerate(candidates, 1):
        tables[each.leaf][each.index] = number
    wanted = evidence.counted
    if evidence.of_step is not None:
        high = np.max(np.stack(list({id(each): each for each in evidence.of_step}.values())), axis=0)
        wanted = wanted[high[wanted] >= _HIGH]
    for drawn in evidence.pieces(wanted):
        residual = evidence.residuals(drawn)
        for leaf, table in enumerate(tables):
            own = np.flatnonzero((drawn.leaf == leaf) & (residual >= _HIGH))
            number = table[drawn.index[own]]
            for at in np.flatnonzero(number).tolist():
                highs = candidates[int(number[at]) - 1].highs
                step = int(drawn.steps[drawn.row[own[at]]])
                highs[step] = highs.get(step, 0.0) + float(residual[own[at]])


def _tied(evidence: Evidence, samples: Samples, best: _Candidate) -> int:
    """Number of samples of its leaf with the same sum."""
    del evidence
    score, uses = samples.score[best.leaf], samples.uses[best.leaf]
    same = np.abs(score - score[best.index]) < 1e-4
    return int((uses[same] == uses[best.index]).sum())


def _suspect(evidence: Evidence, found: _Candidate, chance: float, tied: int) -> Suspect:
    source = evidence.leaves[found.leaf].leaf.source
    place = source.locate(found.index)
    return Suspect(
        kind="sample",
        dataset=str(source.path),
        shard=place.shard,
        key=place.key,
        index=found.index,
        leaf=found.leaf,
        uses=found.uses,
        effect=found.score / found.uses,
        chance=chance,
        steps=tuple(int(evidence.steps[step]) for step in sorted(found.highs)),
        explains=len(found.highs.keys() & set(evidence.spikes.tolist())) / max(1, len(evidence.spikes)),
        tied=tied,
    )


def rank_groups(evidence: Evidence, groups: Groups, kind: Literal["shard", "dataset"]) -> list[Suspect]:
    """Groups by how little chance explains them."""
    steps = len(evidence.steps)
    uses = groups.uses if evidence.whole else groups.share * evidence.uses[groups.leaf]
    means = np.array([chance.mean for chance in evidence.chances])[groups.leaf]
    usual = uses / steps
    if evidence.of_step is None:
        score, variance, largest = groups.score - uses * means, uses, np.ones(len(uses))
    else:
        totals = np.array([float(values.sum()) for values in _counted_residuals(evidence)])[groups.leaf]
        score = groups.score - usual * totals
        squares = groups.squares / evidence.probed - usual**2
        variance = steps * np.maximum(squares, 0 if evidence.whole else usual)
        largest = np.maximum(groups.largest - usual, usual)
    if kind == "dataset" and evidence.of_step is not None:
        for leaf in evidence.own:  # its own losses say whether it has the spikes
            score[leaf] = float((evidence.of_step[leaf] - evidence.chances[leaf].mean)[evidence.spikes].sum())
            variance[leaf], largest[leaf] = len(evidence.spikes), 1.0
    variance = np.maximum(variance, 1e-9)
    logs = np.zeros(len(score))
    for leaf in range(len(evidence.leaves)):
        own = groups.leaf == leaf
        logs[own] = evidence.chances[leaf].log_of(score[own], variance[own], largest[own])
    chances = np.exp(np.minimum(logs + np.log(max(1, len(score))), 700))
    order = np.lexsort((-score / np.sqrt(variance), logs))
    return [_group(evidence, groups, kind, at, uses, score / variance, chances) for at in order.tolist() if uses[at]]


def _counted_residuals(evidence: Evidence) -> list[FloatArray]:
    """For each leaf, the residuals of the steps that were counted."""
    assert evidence.of_step is not None
    return [values[evidence.counted] for values in evidence.of_step]


def _group(
    evidence: Evidence, groups: Groups, kind: Any, at: int, uses: FloatArray, effect: FloatArray, chances: FloatArray
) -> Suspect:
    leaf = int(groups.leaf[at])
    return Suspect(
        kind=kind,
        dataset=str(evidence.leaves[leaf].leaf.source.path),
        shard="" if kind == "dataset" else groups.name[at],
        leaf=leaf,
        uses=round(float(uses[at])),
        effect=float(effect[at]),
        chance=float(chances[at]),
    )
