# SPDX-License-Identifier: Apache-2.0
"""The amendments of a run: a log in its state, and the stream that follows from it and a configuration.

An amendment is a segment appended to the blends: from a round of each lane on, other weights. Everything before that
round stays what it was, so held samples, restore keys and the answers for old steps need no translation. The round is
not stored: it follows from the step's first item, and from how many samples each lane had taken beyond its items (by
drops or packs), which is.

Source of the rounds: item q is at round ceil((q - l) / L) of lane l, or behind it by what the lane took more.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.amendments import anchors, mixture as mixtures
from energon_grain.amendments.change import Change, check_kind
from energon_grain.amendments.cuts import AnyHost, Cut, cut_of, is_plain, order_of, require_cut
from energon_grain.amendments.exclusions import Exclusions
from energon_grain.amendments.graph import graph_of, leaves_of
from energon_grain.amendments.held import operators_above, without_held
from energon_grain.amendments.lane_rows import (
    pack_anchors,
    pack_lane_rows,
    unpack_anchors,
    unpack_lane_rows,
    unpacked_log,
)
from energon_grain.amendments.lanes import LanesBefore
from energon_grain.amendments.mixture import Mixture, Unit
from energon_grain.amendments.narrowing import leaf_changes, narrow, refuse, reopen_all
from energon_grain.amendments.selecting import Selected
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.mixtures import BlendLanes
from energon_grain.datasets.stream_map import IterateLanes
from energon_grain.errors import AmendmentError, ConfigError, SkipSample, StateError
from energon_grain.samplers.blend import Blend, StepBlend, lane_rounds
from energon_grain.samplers.routing import RouteTree
from energon_grain.stream.cursor import Cursor, from_cursor, remember_plans, restored, saved_manifest
from energon_grain.stream.drops import Dropped
from energon_grain.stream.passes import PassPlan, Progress, Share
from energon_grain.stream.spec import Resolved, StreamSpec
from energon_grain.stream.state import Rounds, walk
from energon_grain.stream.stream import Held

Int64Array = npt.NDArray[np.int64]
KEPT = 32
"""The last amendments, which are in every state. Earlier ones are in saved states."""
_logger = logging.getLogger("energon_grain")


@dataclass(frozen=True, kw_only=True, slots=True)
class Amendment:
    """A change of a running mixture.

    Attributes:
        step: The step that was next when it was made.
        item: Its first item.
        from_step: The first step that can have samples of the new mixture: `step`, unless samples are shuffled again,
            planned or divided into epochs above. It counts batches of the present size, and no dropped samples. None:
            it depends on data.
        from_epoch: The first epoch of the new mixture, for a blend by repetitions; else None.
        note: The reason that the program gave.
        before: Share of each dataset in the mixture before the step, by the key of its (first) leaf.
        after: The same from the step on. Datasets that are paused or removed have a share of 0.
        excluded: Number of samples that it excludes, by the key of their leaf.
    """

    step: int
    item: int
    from_step: int | None
    from_epoch: int | None
    note: str
    before: Mapping[str, float]
    after: Mapping[str, float]
    excluded: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True, kw_only=True)
class Amendments:
    """The amendments of a run until now.

    Attributes:
        mixture: The outermost blend over the whole run.
        steps: Step, first item and note of each.
        cuts: Where each takes effect; None: at the present round of each lane.
        ahead: Samples that each lane had taken beyond its items at each amendment, (L,) each; 0 in lanes of other hosts
            that this host does not know.
        resolved: Leaves that the configuration does not have, opened, by key.
        exclusions: Excluded samples.
        spec: The compiled stream, once it is known.
        before: Number of earlier amendments that are not known, and the digest of the last of them.
        digests: Of each and all before it: 8 bytes of BLAKE2b, in hexadecimal, of the one before, the step, item and
            note, and for each blend that changed its first leaf, "#" or "~", and its weights.
        differs: Whether lanes had ever taken more than their items: hosts know this of their own lanes only.
    """

    mixture: Mixture
    steps: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    cuts: list[Cut | None] = field(default_factory=list["Cut | None"])
    ahead: list[Int64Array] = field(default_factory=list[Int64Array])
    resolved: dict[str, Resolved] = field(default_factory=dict[str, Resolved])
    exclusions: Exclusions = field(default_factory=Exclusions)
    spec: StreamSpec | None = None
    before: tuple[int, str] = (0, "")
    digests: list[str] = field(default_factory=list[str])
    differs: bool = False
    _texts: dict[bool, list[str]] = field(default_factory=dict[bool, list[str]], init=False)

    @property
    def log(self) -> list[Amendment]:
        """Each of them."""
        found: list[Amendment] = []
        rows = zip(self.steps, self.cuts, self.positions, strict=True)
        for number, ((step, item, note), cut, position) in enumerate(rows):
            before, after = (mixtures.shares(self.mixture, each, position) for each in (number - 1, number))
            found.append(
                Amendment(
                    step=step,
                    item=item,
                    from_step=step if cut is None else cut.step,
                    from_epoch=None if cut is None else cut.epoch,
                    note=note,
                    before=before,
                    after=after,
                    excluded=self.exclusions.counts(number),
                )
            )
        return found

    def digest(self) -> None:
        """Append the digests that `digests` lacks."""
        first = len(self.digests)
        changes: list[list[tuple[str, str, list[Any]]]] = [[] for _ in self.steps[first:]]
        for blend in anchors.blends(self.mixture):
            for start, weights in reversed(blend.segments):
                if isinstance(start, str) and int(start[1:]) < first:
                    break
                if isinstance(start, str):
                    changes[int(start[1:]) - first].append((next(blend.names()), start[0], list(weights)))
        for number, (step, change) in enumerate(zip(self.steps[first:], changes, strict=True), first):
            before = self.digests[-1] if self.digests else self.before[1]
            said = json.dumps([before, *step, change, *self.exclusions.digests(number)], separators=(",", ":"))
            self.digests.append(hashlib.blake2b(said.encode(), digest_size=8).hexdigest())

    @property
    def counts_samples(self) -> bool:
        """Whether shares are shares of the samples, not of their costs."""
        return self.mixture.kind in (mixtures.WEIGHTS, mixtures.REPETITIONS)

    @property
    def positions(self) -> list[int]:
        """The first position of the outermost blend of each amendment."""
        return [step[1] if cut is None else cut.position for step, cut in zip(self.steps, self.cuts, strict=True)]

    def shares_between(self, first: int, stop: int) -> dict[str, float]:
        """Greatest share of each dataset at positions [first, stop) of the outermost blend."""
        found: dict[str, float] = {}
        positions = self.positions
        for number, (begin, end) in enumerate(zip([0, *positions], [*positions, stop], strict=True)):
            if max(begin, first) < min(end, stop):
                for name, share in mixtures.shares(self.mixture, number - 1, begin).items():
                    found[name] = max(share, found.get(name, 0.0))
        return found

    def drawn(self, item: int) -> dict[str, float]:
        """About how many of the first items of the run are from each dataset, by the key of its (first) leaf."""
        found: dict[str, float] = {}
        ends = [*self.positions, item]
        for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            for name, share in mixtures.shares(self.mixture, number - 1, begin).items():
                found[name] = found.get(name, 0.0) + share * (min(end, item) - min(begin, item))
        return found

    def begins(self, share: Share) -> list[Int64Array]:
        """The round of each lane, (L,), at which each amendment begins; in lanes that are unknown, without drops."""
        return [self.begin(number, share) for number in range(len(self.steps))]

    def begin(self, number: int, share: Share) -> Int64Array:
        """The round of each lane, (L,), at which one amendment begins."""
        cut = self.cuts[number]
        position = self.steps[number][1] if cut is None else cut.position
        return lane_rounds(position, share.lanes) + self.ahead[number]

    def begins_of(self, share: Share, each: Mixture | Unit) -> tuple[Int64Array, ...]:
        """The same for what has states of its own; 0 in lanes that are unknown."""
        nothing = np.zeros(share.lanes, np.int64)
        return tuple(each.taken.get(number, nothing) for number in range(len(self.steps)))

    def compiled(self, dataset: SavableDataset, plain: StreamSpec, share: Share) -> StreamSpec:
        """A configuration compiled with these amendments."""
        self.spec = graph_of(
            dataset,
            plain,
            self.mixture,
            share,
            begins=self.begins(share),
            begins_of=partial(self.begins_of, share),
            resolved=self.resolved,
            exclusions=self.exclusions,
            taken=self.taken(share),
        )
        return self.spec

    def taken(self, share: Share) -> list[Int64Array]:
        """The round of each lane, (L,), that is next at each amendment, wherever it takes effect."""
        steps = zip(self.steps, self.ahead, strict=True)
        return [lane_rounds(item, share.lanes) + ahead for (_, item, _), ahead in steps]

    def opened(self, plain: StreamSpec) -> dict[str, Resolved]:
        """The leaves of the run that are not removed, opened, by key."""
        known = {"/".join(leaf.key): leaf.leaf for leaf in plain.leaves}
        found: dict[str, Resolved] = {}
        for same in mixtures.holders(self.mixture).values():
            if same[-1].node is not None:
                leaves = leaves_of(same[-1], same[-1].node)
                found |= {leaf.name: leaf.resolved(known, self.resolved, self.exclusions) for leaf in leaves}
        return found

    def texts(self, share: Share, *, saved: bool) -> list[str]:
        """The field of a state: the log, which is the same on all hosts, and `ahead` of this host's lanes.

        After more than `KEPT` amendments these are the last ones, followed by the anchors of their mixture. A saved
        state then has the texts of all amendments, too.
        """
        if saved not in self._texts:
            last = self._last()
            texts = self._own_texts(share) if last is None or saved else []
            self._texts[saved] = texts if last is None else [*last._own_texts(share), *texts]
        return self._texts[saved]

    def _own_texts(self, share: Share) -> list[str]:
        cuts = ([] if cut is None else [cut.position, cut.step, cut.epoch] for cut in self.cuts)
        steps = [[*step, *cut] for step, cut in zip(self.steps, cuts, strict=True)]
        excluded = self.exclusions.packed()
        log = [mixtures.packed(self.mixture), steps, *([list(self.before)] if self.before[0] or excluded else [])]
        log += excluded
        said = json.dumps(log, separators=(",", ":"), ensure_ascii=False)
        rows = [*self.ahead]
        for each in mixtures.own_states(self.mixture):
            rows += self.begins_of(share, each)
        own = [row[share.host :: share.hosts] for row in rows] if share.whole_lanes else []
        texts = [base64.b64encode(zlib.compress(said.encode(), 9)).decode(), pack_lane_rows(own)]
        if not self.before[0]:
            return texts
        known = anchors.rows_of(self.mixture, share.lanes)
        return [*texts, pack_anchors(known[:, share.host :: share.hosts] if self.differs else known)]

    def _last(self) -> Amendments | None:
        """The last of them alone; None: these are few, or the mixture has no anchors."""
        count = len(self.steps) - KEPT
        moved = any(len(same) > 1 for same in mixtures.holders(self.mixture).values())
        routes = None if self.spec is None or count <= 0 or moved else routes_of(self.spec)
        mixture = None if self.exclusions.entries else anchors.shortened(self.mixture, routes, count)
        waiting = (cut is not None and cut.position > self.steps[count][1] for cut in self.cuts[: max(0, count)])
        if mixture is None or any(waiting):
            return None
        return Amendments(
            mixture=mixture,
            steps=self.steps[count:],
            cuts=self.cuts[count:],
            ahead=self.ahead[count:],
            before=(self.before[0] + count, self.digests[count - 1]),
            digests=self.digests[count:],
            differs=self.differs,
        )

    @classmethod
    def of_texts(cls, texts: Sequence[str], share: Share, saved_by: tuple[int, int]) -> Amendments:
        """Read the field of a state, for the lanes of a host. Raises StateError if it is damaged or of other lanes."""
        try:
            if len(texts) <= 4:  # the fourth is the name of a file with the rest, see `log_file`
                return cls._of_own_texts(texts, share, saved_by)
            last, whole = (cls._of_own_texts(each, share, saved_by) for each in (texts[:3], texts[3:]))
            anchors.resume(whole.mixture, last.mixture)
        except (ValueError, TypeError, LookupError, AttributeError, zlib.error, RecursionError) as error:
            raise StateError(f"the state's 'amendments' are damaged: {error}") from error
        return whole

    @classmethod
    def _of_own_texts(cls, texts: Sequence[str], share: Share, saved_by: tuple[int, int]) -> Amendments:
        tree, rows, *before = unpacked_log(texts[0])
        mixture = mixtures.unpacked(tree)
        if not isinstance(mixture, Mixture):
            raise ValueError("it has no blend")
        steps = [(int(step), int(item), str(note)) for step, item, note, *_ in rows]
        cuts = [_cut_in(cut) for _, _, _, *cut in rows]
        states = list(mixtures.own_states(mixture))
        ahead, *taken_rows = _lane_rows(texts[1], len(steps), 1 + len(states), share, saved_by)
        for each, taken in zip(states, taken_rows, strict=True):
            each.taken = dict(enumerate(taken))
        found = cls(mixture=mixture, steps=steps, cuts=cuts, ahead=ahead, differs=bool(texts[1]))
        found.exclusions = Exclusions.unpacked(before[1:])
        if before and before[0][0]:
            found.before = int(before[0][0]), str(before[0][1])
            own = unpack_anchors(texts[2])
            found.differs |= own.shape[1] != share.lanes
            anchors.take_rows(mixture, _lanes_of(own, share, saved_by, differs=found.differs))
        found.digest()
        return found


def routes_of(spec: StreamSpec) -> RouteTree | None:
    """The routers of a stream that has one order; None: it has several, or none."""
    orders = [spec.index_map] if spec.program is None else [feed.order for feed in spec.program.feeds]
    return None if len(orders) != 1 or orders[0] is None else orders[0].routes


def _lanes_of(rows: Int64Array, share: Share, saved_by: tuple[int, int], *, differs: bool) -> Int64Array:
    """Numbers of all lanes; those of other hosts are 0 if they differ, as for `Amendments.begin`."""
    if rows.shape[1] == share.lanes and not differs:
        return rows
    own = slice(share.host, None, share.hosts)
    if rows.shape[1] == share.lanes:
        rows = rows[:, own]
    elif saved_by != (share.host, share.hosts):
        raise _own_lanes_only(saved_by)
    found = np.zeros((len(rows), share.lanes), np.int64)
    found[:, own] = rows
    return found


def _own_lanes_only(saved_by: tuple[int, int]) -> StateError:
    return StateError(
        f"the state of host {saved_by[0]} of {saved_by[1]} knows where amendments begin in its own lanes only; save "
        f"with `save_state_global` or the checkpoint handler, which keep all hosts'"
    )


def _cut_in(row: list[Any]) -> Cut | None:
    """Where an amendment takes effect, from the end of its row in a state."""
    if not row:
        return None
    position, step, epoch = row
    found = [None if each is None else int(each) for each in (step, epoch)]
    return Cut(position=int(position), step=found[0], epoch=found[1], first=int(position))


def _lane_rows(
    text: str, amendments: int, kinds: int, share: Share, saved_by: tuple[int, int]
) -> list[list[Int64Array]]:
    """Numbers of all lanes at each amendment, for each of several kinds, as a host saved them; unknown ones are 0."""
    rows = np.zeros((kinds, amendments, share.lanes), np.int64)
    host, hosts = saved_by
    if text:
        found = unpack_lane_rows(text, share.lanes // hosts)
        if len(found) != amendments * kinds:
            raise ValueError(f"it has {len(found)} rows of lanes for {amendments} amendments and {kinds} blends")
        if hosts not in (1, share.hosts) or (hosts > 1 and host != share.host):
            raise _own_lanes_only(saved_by)
        share.require_whole_lanes("the mixture was amended, and samples were dropped or held then")
        rows[:, :, host::hosts] = found.reshape(kinds, amendments, -1)
    return [list(each) for each in rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class Amended:
    """A stream with amendments.

    Attributes:
        spec: The stream with all amendments.
        amendments: Of the run, until now; None: there are none.
        progress: The place of the stream.
        dropped: Held samples of removed datasets that were dropped.
    """

    spec: StreamSpec
    amendments: Amendments | None
    progress: Progress
    dropped: Sequence[Dropped] = ()


def by_state(
    dataset: SavableDataset,
    plain: StreamSpec,
    cursor: Cursor,
    share: Share,
    *,
    same: bool,
    note: str = "",
    held: Held = "deliver",
    any_host: AnyHost | None = None,
) -> Amended:
    """The stream of a state with amendments, or of a state that a changed mixture continues.

    Args:
        dataset: The configuration as it is now.
        plain: The configuration, compiled.
        cursor: A checked state.
        share: This host's part.
        same: Whether the configuration is the one that the state was saved with.
        note: The reason of the change, for the log.
        held: The fate of samples of removed datasets that lanes hold.
        any_host: See `WorkerConfig.any_host`.

    Raises:
        StateError: The state, or its amendments, are damaged or cannot be continued.
        AmendmentError: Something differs that cannot be amended, or the state does not say what it is of; or a dataset
            that was added in the run is not in the configuration.
    """
    host, hosts = cursor["host"]
    before = Amendments.of_texts(cursor["amendments"], share, (host, hosts)) if "amendments" in cursor else None
    new = mixture_of(dataset, plain)
    if same:
        assert before is not None
        reopen_all(before.exclusions, new, plain, before.resolved)
        _join(before.mixture, new)
        spec = before.compiled(dataset, plain, share)
        return Amended(spec=spec, amendments=before, progress=_restored(cursor, spec, share))
    amendments, rows, excluded = _saved(dataset, plain, cursor, before, new)
    change = Change(amendments.mixture, new)
    before_change = {id(unit) for unit in mixtures.units(amendments.mixture) if unit.removed}
    removed = mixtures.note_removed(amendments.mixture, rows)
    _warn_of_renamed(
        [unit for unit in mixtures.units(amendments.mixture) if unit.removed and id(unit) not in before_change],
        {name: row for name, row in plain.manifest()["leaves"].items() if name not in {*amendments.mixture.names()}},
    )
    found = _continued(amendments, change, dataset, plain, cursor, share, note, removed, held, excluded, any_host)
    if found is not None:
        return found
    as_it_was = not amendments.steps and not amendments.exclusions.kept
    if as_it_was and list(new.names()) == list(amendments.mixture.names()):
        return Amended(spec=plain, amendments=None, progress=_restored(cursor, plain, share))
    spec = amendments.compiled(dataset, plain, share)
    return Amended(spec=spec, amendments=amendments, progress=_restored(cursor, spec, share))


def _warn_of_renamed(gone: Sequence[Unit], added: Mapping[str, Mapping[str, Any]]) -> None:
    """Log added leaves that have the data of leaves that are gone: under another name, they begin again."""
    was = {row.get("content"): name for unit in gone for name, row in zip(unit.leaves, unit.rows or (), strict=False)}
    for name, row in added.items():
        if old := was.get(row["content"]):
            _logger.warning(
                "%s has the data of %s, which the configuration no longer has. It begins again, and repeats samples "
                "that %s delivered. To continue there, give it the name that it had",
                name,
                old,
                old,
            )


def _restored(cursor: Cursor, spec: StreamSpec, share: Share) -> Progress:
    return restored(cursor, spec, share, PassPlan.of(spec, share.hosts), allow_changes=False)


def _continued(
    amendments: Amendments,
    change: Change,
    dataset: SavableDataset,
    plain: StreamSpec,
    cursor: Cursor,
    share: Share,
    note: str,
    removed: bool,
    held: Held,
    excluded: Sequence[Selected],
    any_host: AnyHost | None,
) -> Amended | None:
    """The stream of a state after a change; None: nothing changes. The arguments are those of `by_state`."""
    append = partial(
        appended, amendments, change, dataset, plain, removed=removed, held=held, excluded=lambda: excluded, given=False
    )
    if amendments.mixture.in_lanes:
        spec = amendments.compiled(dataset, plain, share)
        return append(spec, share, _restored(cursor, spec, share), note, None)
    hosts = cursor["host"][1]
    known = Share(0, 1, share.lanes) if hosts == 1 else share
    place = from_cursor(cursor, known, plain.program)
    running, cut = plain, None
    alone = amendments.mixture.per_step == mixtures.ALONE
    if not alone and not is_plain(order_of(plain)):
        running = amendments.compiled(dataset, plain, share)
        if running.folds:
            remember_plans(cursor, running)
        cut = cut_of(running, known, place, hosts=share.hosts, any_host=any_host)
    own = place if hosts in (1, share.hosts) and known == share else from_cursor(cursor, share, plain.program)
    found = append(running, share, own, note, cut)
    _check_removed(amendments, cut)
    if found is None:
        return None
    place = _restored(cursor, found.spec, share)
    return replace(found, progress=place._replace(lanes=found.progress.lanes))


def _saved(
    dataset: SavableDataset, plain: StreamSpec, cursor: Cursor, before: Amendments | None, new: Mixture
) -> tuple[Amendments, Mapping[str, dict[str, Any]], list[Selected]]:
    """The amendments of a state of another configuration, its manifest's entries of leaves, and what is excluded now.

    In `new`, leaves that are selected more narrowly get the keys that they have in the run.

    Raises AmendmentError if the state has no manifest, or more differs than can be amended.
    """
    saved = saved_manifest(cursor)
    if saved is None:
        raise AmendmentError(
            "the state has no manifest, so the change cannot be known: states of save_state_rank, save_state_global "
            "and the checkpoint handlers have one"
        )
    now = json.loads(json.dumps(plain.manifest()))
    was = _saved_mixture(dataset, plain, saved, now, [new, *([] if before is None else [before.mixture])])
    amendments = before or Amendments(mixture=was)
    check_kind(amendments.mixture, new)
    excluded = narrow(amendments.exclusions, amendments.mixture, new, saved, now, plain, amendments.resolved)
    _check_rest(saved, now, amendments.mixture)
    mixtures.know_forms(amendments.mixture, was)
    return amendments, saved["leaves"], excluded


def _saved_mixture(
    dataset: SavableDataset,
    plain: StreamSpec,
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    known: Sequence[Mixture],
) -> Mixture:
    """The mixture of a saved configuration. Raises AmendmentError if it cannot be amended."""
    if any(each.per_step == mixtures.ALONE for each in known):
        return _whole(dataset, plain, saved, now)
    was = mixtures.described(saved["mixture"], saved["leaves"])
    if was is None:
        raise AmendmentError("the saved stream cannot be amended: its outermost dataset is not a blend")
    return was


def _whole(dataset: SavableDataset, plain: StreamSpec, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Mixture:
    """A saved configuration without a blend by weights as a whole. Raises AmendmentError if its mixture changed."""
    if saved["mixture"] != now["mixture"]:
        configured(dataset, plain)
        raise AmendmentError("the saved stream cannot be amended: its outermost dataset is not a blend by weights")
    return mixtures.whole(saved["leaves"], None)


def appended(
    amendments: Amendments,
    change: Change,
    dataset: SavableDataset,
    plain: StreamSpec,
    spec: StreamSpec,
    share: Share,
    progress: Progress,
    note: str,
    cut: Cut | None,
    *,
    removed: bool,
    held: Held,
    excluded: Callable[[], Sequence[Selected]],
    given: bool = True,
) -> Amended | None:
    """Append an amendment at a place, if a change, the removal of a dataset or excluded samples make one.

    Args:
        amendments: Of the run until now; they are changed.
        change: The change of their mixture.
        dataset: The configuration.
        plain: The configuration, compiled.
        spec: The stream until now.
        share: This host's part.
        progress: Its place.
        note: The reason.
        cut: Where it takes effect; None: at the present round of each lane.
        removed: Whether the configuration lacks a dataset for the first time.
        held: The fate of samples of removed datasets that lanes hold.
        excluded: Returns the samples to exclude, once the mixture is changed.
        given: Whether a program excludes them, not the configuration.

    Returns:
        None if nothing changes.

    Raises:
        AmendmentError: It cannot be amended.
    """
    mixture = amendments.mixture
    drawn = {unit.number for unit in mixtures.drawn(mixture)}
    before = LanesBefore(spec, mixture, progress) if mixture.in_lanes else None
    position = progress.item if cut is None else cut.position
    changed = change.append(len(amendments.steps), position) or removed
    changed |= exclude(amendments, plain, progress, excluded(), configured=not given)
    if not changed:
        return None
    mixtures.note_removed(mixture, {})
    record(amendments, spec, share, progress, note, cut, before)
    after = amendments.compiled(dataset, plain, share)
    if before is not None:
        progress = before.after(after)
    left = drawn - {unit.number for unit in mixtures.drawn(mixture)}
    progress, dropped = without_left(after, progress, mixture, left, held)
    return Amended(spec=after, amendments=amendments, progress=progress, dropped=dropped)


def exclude(
    amendments: Amendments,
    plain: StreamSpec,
    progress: Progress,
    excluded: Sequence[Selected],
    *,
    configured: bool = False,
) -> bool:
    """Exclude samples by the amendment that is recorded next; return whether any is new. Raises AmendmentError."""
    if not excluded:
        return False
    known = amendments.opened(plain)
    added = [
        amendments.exclusions.add(
            len(amendments.steps),
            progress.pass_number,
            each.leaf,
            each.samples,
            len(known[each.leaf].source),
            condition=each.condition,
            configured=configured,
        )
        for each in excluded
    ]
    return any(added)


def record(
    amendments: Amendments,
    spec: StreamSpec,
    share: Share,
    progress: Progress,
    note: str,
    cut: Cut | None,
    before: LanesBefore | None = None,
) -> None:
    """Record where an amendment takes effect that was made to the mixture.

    Args:
        amendments: Of the run; they are changed.
        spec: The stream until now.
        share: This host's part.
        progress: Its place.
        note: The reason.
        cut: Where it takes effect; None: at the present round of each lane.
        before: The states of lanes that have several.

    Raises:
        AmendmentError: A choice is for lanes of which this host knows nothing.
    """
    whole = np.zeros(share.lanes, np.int64)
    if cut is None:
        _check_choices(amendments.mixture, spec, share, progress)
        own = slice(share.host, None, share.hosts)
        rounds = _rounds(spec, share, progress) if before is None else before.rounds(amendments.mixture)
        if share.whole_lanes:
            whole[own] = rounds - lane_rounds(progress.item, share.lanes)[own]
    if before is not None:
        before.note(len(amendments.steps), share)
    amendments.steps.append((progress.step, progress.item, note))
    amendments.cuts.append(cut)
    amendments.ahead.append(whole)
    amendments.differs |= bool(whole.any())
    amendments.digest()


def _check_choices(mixture: Mixture, spec: StreamSpec, share: Share, progress: Progress) -> None:
    """Refuse choices for several lanes of which a host knows only its own. Raises AmendmentError."""
    shared = any(each.per_step > 0 for each in mixtures.blends(mixture))
    if shared and share.hosts > 1 and (spec.program is not None or progress.drops.any()):
        raise AmendmentError(
            "a blend with per_step chooses for the lanes of all hosts at once, and samples were dropped or held, which "
            "each host knows of its own lanes only: amend the state of all hosts on one host "
            "(`energon-grain checkpoint amend`), and restore that"
        )


def without_left(
    spec: StreamSpec, progress: Progress, mixture: Mixture, left: Collection[int], held: Held
) -> tuple[Progress, list[Dropped]]:
    """The place without held samples of removed datasets, if they are dropped; and these.

    Args:
        spec: The amended stream.
        progress: Its place.
        mixture: Of the run.
        left: Numbers of the units that this amendment removes.
        held: The fate of their samples.

    Raises:
        AmendmentError: They cannot be delivered, because the configuration does not have the dataset.
    """
    if held not in ("deliver", "drop"):
        raise ConfigError(f"held={held!r}: expected 'deliver' or 'drop'")
    chosen = left if held == "drop" else ()
    names = mixtures.names_by_number(unit for unit in mixtures.units(mixture) if unit.removed or unit.number in chosen)
    after, counts = without_held(spec, progress, names)
    if not counts:
        return progress, []
    said = ", ".join(f"{count} of {names[number]}" for number, count in counts.items())
    if held == "deliver":
        raise AmendmentError(
            f"lanes hold samples of a dataset that was removed from the configuration: {said}. Keep it there, restore "
            f"and call `loader.amend(remove=[…])`, which delivers them; or pass held='drop', which drops them"
        )
    _logger.warning("dropped held samples of removed datasets: %s", said)
    error = SkipSample("its dataset was removed")
    leaves = Counter(counts).elements()
    return after, [Dropped(leaf=leaf, hook="amend", failure_tolerance=0, error=error, sample=None) for leaf in leaves]


def _check_removed(amendments: Amendments, cut: Cut | None) -> None:
    """Refuse a removed dataset of which samples are still to be delivered. Raises AmendmentError."""
    drawn = {} if cut is None else amendments.shares_between(cut.first, cut.position)
    for unit in mixtures.units(amendments.mixture):
        if unit.removed and drawn.get(unit.leaves[0]):
            until = "later" if cut is None or cut.step is None else f"with step {cut.step}"
            raise AmendmentError(
                f"{unit.leaves[0]}: it was removed from the configuration, but its samples are in the order until the "
                f"change takes effect, {until}. Keep it in the configuration until then, and remove it in the running "
                f"loader: `loader.amend(remove=[…])`"
            )


def _rounds(spec: StreamSpec, share: Share, progress: Progress) -> Int64Array:
    """Samples that each lane of a host took, (lanes of the host,)."""
    if spec.program is None:
        own = lane_rounds(progress.item, share.lanes)[share.host :: share.hosts]
        return own + progress.drops if share.whole_lanes else own
    taken = np.zeros(share.local_lanes, np.int64)
    for number, state in enumerate(progress.lanes or ()):
        places = walk(spec.program.root.state_form, state, later=True)
        taken[number] = sum(found[1] for form, found in places if isinstance(form, Rounds))
    return taken


def mixture_of(dataset: SavableDataset, plain: StreamSpec) -> Mixture:
    """The mixture of a configuration, with its nodes; or the whole of it, from which samples can be excluded alone."""
    try:
        return configured(dataset, plain)
    except AmendmentError:
        return mixtures.whole(("/".join(leaf.key) for leaf in plain.leaves), dataset)


def configured(dataset: SavableDataset, plain: StreamSpec) -> Mixture:
    """The mixture of a configuration, with its nodes.

    Raises AmendmentError if its outermost mixture is no blend, or one that cannot begin again.
    """
    manifest = json.loads(json.dumps(plain.manifest()))
    found = mixtures.described(manifest["mixture"], manifest["leaves"])
    if found is not None and found.in_lanes:
        _require_items(plain)
    else:
        require_cut(order_of(plain))
    if found is None:
        raise AmendmentError("the stream cannot be amended: its outermost dataset is not a blend")
    above = () if plain.program is None else operators_above(plain.program.root)
    if any(isinstance(operator, IterateLanes) for operator, _ in above):
        raise AmendmentError(
            "a stream-to-stream function (IterMapDataset) is above the blend, and only it knows which samples it has "
            "read: move it below the blend, to its datasets"
        )
    mixtures.attach(found, mixtures.outermost_blend(dataset))
    return found


def _require_items(plain: StreamSpec) -> None:
    """Raise AmendmentError unless lanes run an endless blend by weights of what filters, groups, packs or generates."""
    operator = None if plain.program is None else plain.program.root
    while operator is not None and not isinstance(operator, BlendLanes):
        operator = operator.children[0] if len(operator.children) == 1 else None
    if operator is None or not isinstance(operator.router, Blend | StepBlend) or not plain.endless:
        raise AmendmentError(
            "the stream cannot be amended: datasets filter, group, pack or generate below a mixture that is no endless "
            "blend by weights; move these steps above it"
        )


def _join(mixture: Mixture, new: Mixture) -> None:
    """Give the children of a run's mixture the nodes of a configuration. Raises AmendmentError if one is missing."""
    removed = {id(unit): unit.removed for unit in mixtures.units(mixture)}
    Change(mixture, new)
    mixtures.note_removed(mixture, {})
    for unit in mixtures.units(mixture):
        if unit.removed and not removed[id(unit)]:
            raise AmendmentError(
                f"{unit.leaves[0]}: the run has this dataset, the configuration does not: it was added while the run "
                f"went on; write it into the configuration, and restore with on_change='amend'"
            )


def _check_rest(saved: Mapping[str, Any], now: Mapping[str, Any], mixture: Mixture) -> None:
    """Check that only what can be amended differs. Raises AmendmentError that names the rest."""
    lines = [
        f"{name}: was {saved.get(name)!r}, is {now.get(name)!r}"
        for name in dict.fromkeys((*saved, *now))
        if name not in ("mixture", "leaves") and _rest_of(saved, name) != _rest_of(now, name)
    ]
    lines += _column_changes(saved, now)
    above, above_now = _above_blend(saved["mixture"]), _above_blend(now["mixture"])
    if above != above_now:
        lines.append(f"mixture: was {above}, is {above_now}")
    rows: dict[str, Mapping[str, Any]] = {}
    for unit in mixtures.units(mixture):
        rows |= zip(unit.leaves, unit.rows or (), strict=False)
    for name, row in {**rows, **saved["leaves"]}.items():
        lines += leaf_changes(name, row, now["leaves"].get(name, row))
    if lines:
        refuse(lines)


def _above_blend(mixture: Any) -> Any:
    """The nodes above the outermost blend, as a manifest describes them."""
    if not isinstance(mixture, Mapping) or mixtures.is_blend(cast("Any", mixture)):
        return "blend"
    node = cast("Mapping[str, Any]", mixture)
    return {
        name: _above_blend(value) if name in ("of", "generate") else value
        for name, value in node.items()
        if name != "columns"  # of each leaf, see `_columns_of`
    }


def _rest_of(manifest: Mapping[str, Any], name: str) -> Any:
    """A setting without what it says of each leaf."""
    value = manifest.get(name)
    if not isinstance(value, Mapping):
        return value
    settings = cast("Mapping[str, Any]", value)
    return {field: each for field, each in settings.items() if field != "columns"}


def _columns_of(manifest: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The identifiers of the columns of each leaf that plans, costs and balance depend on, by the leaf's key."""
    names = list(manifest["leaves"])
    found: dict[str, list[Any]] = {name: [] for name in names}
    for name, ids in manifest.get("balance", {}).get("columns", {}).items():
        found[name].append(ids)
    node = manifest["mixture"]
    while isinstance(node, Mapping):
        above = cast("Mapping[str, Any]", node)
        for number, ids in enumerate(above.get("columns", ())):
            found[names[number % len(names)]].append(ids)
        node = None if mixtures.is_blend(above) else above.get("of", above.get("generate"))
    return found


def _column_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Lines for the leaves whose columns have other values."""
    before, after = _columns_of(saved), _columns_of(now)
    return [
        f"{name}: columns were {ids}, are {after[name]}"
        for name, ids in before.items()
        if name in after and after[name] != ids
    ]
