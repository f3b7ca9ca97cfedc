# SPDX-License-Identifier: Apache-2.0
"""From the sums of residuals to suspects, with the chance of each score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from energon_grain.history.bulk_draws import DrawnSteps
from energon_grain.history.chance import Chance, Tail
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
        names: Their names in exclusions.
        steps: (t,) the steps of the loader.
        counted: The steps that were counted, as indices.
        probed: Number of steps that show how often samples are used.
        whole: Whether all steps were counted.
        pieces: The samples of steps, piece by piece.
        residuals: The residual of each of them.
        of_step: For each leaf, (t,) residuals of steps; None: items have residuals of their own.
        chances: For each leaf.
        tail: The tail of the residuals of items; None: only steps have losses, or they are few.
        uses: (leaves,) number of uses of the samples of each leaf, over all steps.
        uncut: (t,) residuals of steps, not cut off.
        spikes: The steps with a spike, as indices.
        own: Leaves whose samples have losses of their own, so that `of_step` differs from that of others.
    """

    leaves: Sequence[LeafSpec]
    names: Sequence[str]
    steps: Int64Array
    counted: Int64Array
    probed: int
    whole: bool
    pieces: Callable[[Int64Array], Iterator[DrawnSteps]]
    residuals: Residuals
    of_step: Sequence[FloatArray] | None
    chances: Sequence[Chance]
    tail: Tail | None
    uses: FloatArray
    uncut: FloatArray
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


def rank_samples(
    evidence: Evidence, samples: Samples, most: int, only: npt.NDArray[np.bool_] | None = None
) -> list[Suspect]:
    """The samples that explain most. A sample that is hardly a result of chance explains the residuals of its steps.

    Args:
        evidence: The steps.
        samples: The scores of all samples.
        most: Number of samples.
        only: (t,) steps whose samples are ranked, by the other steps that used them; None: all samples are.
    """
    if only is None:
        candidates, among = _candidates(evidence, samples), len(samples)
    else:
        candidates = _candidates_of(evidence, samples, np.flatnonzero(only))
        among = len(candidates)
    _find_steps(evidence, samples, candidates)
    found: list[Suspect] = []
    left = _ordered(evidence, candidates)
    while left and len(found) < most:
        best = left.pop(0)
        log = evidence.chances[best.leaf].exact_log_of(best.score, best.uses)
        chance = float(np.exp(log + np.log(among)))
        if evidence.tail is not None and best.highs:  # the better one of two tests
            chance = 2 * min(chance, evidence.tail.expected(max(best.highs.values())))
        found.append(_suspect(evidence, best, chance, 1 if evidence.of_step is None else _tied(samples, best)))
        if chance < _EXPLAINED and evidence.of_step is not None:
            left = _ordered(evidence, _less(left, best))
    return found


def _ordered(evidence: Evidence, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The candidates, the least likely by chance first."""
    logs = _logs(evidence, candidates)
    ratio = np.array([each.score / np.sqrt(max(1, each.uses)) for each in candidates])
    uncut = np.array([sum(evidence.uncut[step] for step in each.highs) for each in candidates])
    return [candidates[at] for at in np.lexsort((-ratio, -uncut, logs)).tolist()]


def _logs(evidence: Evidence, candidates: Sequence[_Candidate]) -> FloatArray:
    """The log of p of each candidate."""
    found = np.zeros(len(candidates))
    leaf = np.array([each.leaf for each in candidates])
    score = np.array([each.score for each in candidates])
    uses = np.array([max(each.uses, 0) for each in candidates], np.float64)
    score[uses == 0] = 0
    for number in np.unique(leaf).tolist():
        own = leaf == number
        found[own] = evidence.chances[number].log_of(score[own], uses[own])
    return found


def _less(left: Sequence[_Candidate], best: _Candidate) -> Sequence[_Candidate]:
    """The other candidates without the residuals of a suspect's steps."""
    for each in left:
        for step in each.highs.keys() & best.highs.keys():
            each.score -= each.highs.pop(step)
    return left


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


def _candidates_of(evidence: Evidence, samples: Samples, only: Int64Array) -> list[_Candidate]:
    """The samples of some steps. Their uses in these steps count only if they have losses of their own."""
    found: dict[tuple[int, int], _Candidate] = {}
    for drawn in evidence.pieces(only):
        for leaf, index, row in zip(drawn.leaf.tolist(), drawn.index.tolist(), drawn.row.tolist(), strict=True):
            one = found.get((leaf, index))
            if one is None:
                uses = float(_uses(evidence, samples, leaf, np.array([index]))[0])
                score = float(samples.score[leaf][index]) - uses * evidence.chances[leaf].mean
                one = found[leaf, index] = _Candidate(leaf, index, int(uses), score)
            if evidence.of_step is not None:
                one.uses -= 1
                one.score += evidence.chances[leaf].mean
            one.highs[int(drawn.steps[row])] = 0.0
    return list(found.values())


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


def _tied(samples: Samples, best: _Candidate) -> int:
    """Number of samples of its leaf with the same sum."""
    score, uses = samples.score[best.leaf], samples.uses[best.leaf]
    same = np.abs(score - score[best.index]) < 1e-4
    return int((uses[same] == uses[best.index]).sum())


def _suspect(evidence: Evidence, found: _Candidate, chance: float, tied: int) -> Suspect:
    source = evidence.leaves[found.leaf].leaf.source
    place = source.locate(found.index)
    return Suspect(
        kind="sample",
        dataset=str(source.path),
        name=evidence.names[found.leaf],
        shard=place.shard,
        key=place.key,
        index=found.index,
        leaf=found.leaf,
        uses=found.uses,
        effect=found.score / max(1, found.uses),
        chance=chance,
        steps=tuple(int(evidence.steps[step]) for step in sorted(found.highs)),
        explains=len(found.highs.keys() & set(evidence.spikes.tolist())) / max(1, len(evidence.spikes)),
        tied=tied,
    )


def rank_groups(evidence: Evidence, groups: Groups, kind: Literal["shard", "dataset"], most: int) -> list[Suspect]:
    """The groups that explain most. One that is hardly a result of chance explains the residuals of its steps."""
    ranking = _GroupRanking(evidence, groups, kind)
    found: list[Suspect] = []
    left = (groups.uses > 0) & ((ranking.score > 0) | (kind == "dataset"))
    while left.any() and len(found) < most:
        logs = np.where(left, ranking.logs(), np.inf)
        at = int(np.lexsort((-ranking.score / np.sqrt(ranking.variance), logs))[0])
        left[at] = False
        chance = float(np.exp(logs[at] + np.log(len(left))))
        found.append(ranking.suspect(at, chance))
        if chance < _EXPLAINED:
            ranking.explain(at)
    return found


class _GroupRanking:
    """The scores of groups, less what suspects explain.

    Attributes:
        score: (g,) U of `history.chance`.
        variance: (g,) V.
        largest: (g,) m.
    """

    def __init__(self, evidence: Evidence, groups: Groups, kind: Literal["shard", "dataset"]) -> None:
        self._evidence, self._groups = evidence, groups
        self._kind: Literal["shard", "dataset"] = kind
        self._uses = groups.uses if evidence.whole else groups.share * evidence.uses[groups.leaf]
        self._usual = self._uses / len(evidence.steps)
        self._left: list[FloatArray] | None = None
        if evidence.of_step is not None:
            copies = {id(values): values.copy() for values in evidence.of_step}
            self._left = [copies[id(values)] for values in evidence.of_step]
        if self._left is None:
            means = np.array([chance.mean for chance in evidence.chances])[groups.leaf]
            self.score, self.variance = groups.score - self._uses * means, self._uses
            self.largest = np.ones(len(self._uses))
        else:
            self.score = groups.score - self._usual * self._totals(self._left)
            squares = groups.squares / evidence.probed - self._usual**2
            self.variance = len(evidence.steps) * np.maximum(squares, 0 if evidence.whole else self._usual)
            self.largest = np.maximum(groups.largest - self._usual, self._usual)
            self._take_own_losses(self._left)
        self.variance = np.maximum(self.variance, 1e-9)

    def _totals(self, values: Sequence[FloatArray]) -> FloatArray:
        """(g,) sum of the residuals of all counted steps."""
        totals = [float(own[self._evidence.counted].sum()) for own in values]
        return np.array(totals)[self._groups.leaf]

    def _take_own_losses(self, of_step: Sequence[FloatArray]) -> None:
        """A dataset with losses of its own has a spike where these have one."""
        if self._kind == "dataset":
            evidence = self._evidence
            for leaf in evidence.own:
                own = of_step[leaf] - evidence.chances[leaf].mean
                self.score[leaf] = float(own[evidence.spikes].sum())
                self.variance[leaf], self.largest[leaf] = len(evidence.spikes), 1.0

    def logs(self) -> FloatArray:
        """(g,) log of p."""
        found = np.zeros(len(self.score))
        for leaf, chance in enumerate(self._evidence.chances):
            own = self._groups.leaf == leaf
            found[own] = chance.log_of(self.score[own], self.variance[own], self.largest[own])
        return found

    def explain(self, at: int) -> None:
        """Take from each step the mean residual of all steps that use a group equally often, and add up again."""
        kept = self._groups.kept
        if not kept or self._left is None:
            return
        steps = np.concatenate([steps for steps, _ in kept])
        uses = np.concatenate([counts[:, at] for _, counts in kept])
        number = np.maximum(np.bincount(uses), 1)
        for values in {id(each): each for each in self._left}.values():
            own = values[steps]
            mean = np.bincount(uses, own) / number
            values[steps] = own - mean[uses] + own.mean()
        self.score = self._scores(kept, self._left)

    def _scores(
        self, kept: Sequence[tuple[Int64Array, npt.NDArray[np.uint8]]], left: Sequence[FloatArray]
    ) -> FloatArray:
        """(g,) U of the residuals that are left."""
        found = -self._usual * self._totals(left)
        of = np.array([id(values) for values in left])[self._groups.leaf]
        for values in {id(each): each for each in left}.values():
            own = np.flatnonzero(of == id(values))
            for steps, counts in kept:
                found[own] += values[steps] @ counts[:, own]
        return found

    def suspect(self, at: int, chance: float) -> Suspect:
        """A group as a suspect."""
        leaf = int(self._groups.leaf[at])
        return Suspect(
            kind=self._kind,
            dataset=str(self._evidence.leaves[leaf].leaf.source.path),
            name=self._evidence.names[leaf],
            shard="" if self._kind == "dataset" else self._groups.name[at],
            leaf=leaf,
            uses=round(float(self._uses[at])),
            effect=float(self.score[at] / self.variance[at]),
            chance=chance,
        )
