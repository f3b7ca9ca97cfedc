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
import dataclasses
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, cast

import numpy as np
import numpy.typing as npt

from energon_grain.amendments import anchors, mixture as mixtures
from energon_grain.amendments.cuts import AnyHost, Cut, blend_of, cut_of, is_plain, order_of, require_cut
from energon_grain.amendments.epochs import EpochSegments
from energon_grain.amendments.exclusions import Excluding, Exclusions, is_one_leaf
from energon_grain.amendments.lane_rows import pack_anchors, pack_lane_rows, unpack_anchors, unpack_lane_rows
from energon_grain.amendments.mixture import Mixture
from energon_grain.amendments.narrowing import ConfiguredLeaf, narrowed, reopen
from energon_grain.amendments.removed import RemovedLeaf
from energon_grain.amendments.selecting import Selected, where
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.datasets.mixtures import AmendedAt
from energon_grain.errors import AmendmentError, StateError
from energon_grain.samplers.blend import lane_rounds
from energon_grain.samplers.routing import RouteTree
from energon_grain.stream.cursor import Cursor, from_cursor, remember_plans, saved_manifest
from energon_grain.stream.passes import Progress, Share
from energon_grain.stream.spec import Resolved, StreamSpec
from energon_grain.stream.state import Rounds, walk

Int64Array = npt.NDArray[np.int64]
_MAX_TEXT = 1 << 24
KEPT = 32
"""The last amendments, which are in every state. Earlier ones are in saved states."""


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
        ahead: Samples that each lane of this host had taken beyond its items at each amendment, (lanes,) each.
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
        """The round of each lane, (L,), at which each amendment begins; lanes of other hosts as if nothing dropped."""
        return [self.begin(number, share) for number in range(len(self.steps))]

    def begin(self, number: int, share: Share) -> Int64Array:
        """The round of each lane, (L,), at which one amendment begins."""
        cut = self.cuts[number]
        rounds = lane_rounds(self.steps[number][1] if cut is None else cut.position, share.lanes)
        if share.whole_lanes:
            rounds[share.host :: share.hosts] += self.ahead[number]
        return rounds

    def taken(self, share: Share) -> list[Int64Array]:
        """The round of each lane, (L,), that is next at each amendment, wherever it takes effect."""
        found = [lane_rounds(item, share.lanes) for _, item, _ in self.steps]
        for rounds, ahead in zip(found, self.ahead, strict=True):
            if share.whole_lanes:
                rounds[share.host :: share.hosts] += ahead
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
        texts = [base64.b64encode(zlib.compress(said.encode(), 9)).decode(), pack_lane_rows(self.ahead)]
        if not self.before[0]:
            return texts
        rows = anchors.rows_of(self.mixture, share.lanes)
        return [*texts, pack_anchors(rows[:, share.host :: share.hosts] if self.differs else rows)]

    def _last(self) -> Amendments | None:
        """The last of them alone; None: these are few, or the mixture has no anchors."""
        count = len(self.steps) - KEPT
        routes = None if self.spec is None or count <= 0 else routes_of(self.spec)
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
        unpacking = zlib.decompressobj()
        said = unpacking.decompress(base64.b64decode(texts[0], validate=True), _MAX_TEXT)
        if not unpacking.eof:
            raise ValueError("it is cut short")
        tree, rows, *before = json.loads(said)
        mixture = mixtures.unpacked(tree)
        if not isinstance(mixture, Mixture):
            raise ValueError("it has no blend")
        steps = [(int(step), int(item), str(note)) for step, item, note, *_ in rows]
        cuts = [_cut_in(cut) for _, _, _, *cut in rows]
        ahead = _ahead_of(texts[1], len(steps), share, saved_by)
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


def _ahead_of(text: str, count: int, share: Share, saved_by: tuple[int, int]) -> list[Int64Array]:
    """How far the lanes of a host were ahead at each amendment, from what some host saved."""
    if not text:
        return [np.zeros(share.local_lanes, np.int64) for _ in range(count)]
    host, hosts = saved_by
    found = unpack_lane_rows(text, share.lanes // hosts)
    if len(found) != count:
        raise ValueError(f"it has {len(found)} rows of lanes for {count} amendments")
    if (host, hosts) == (share.host, share.hosts):
        return list(found)
    if hosts != 1:
        raise _own_lanes_only(saved_by)
    share.require_whole_lanes("the mixture was amended, and samples were dropped or held then")
    return list(found[:, share.host :: share.hosts])


@dataclass(frozen=True, kw_only=True, slots=True)
class Amended:
    """A stream with amendments.

    Attributes:
        spec: The stream with all amendments.
        amendments: Of the run, until now; None: there are none.
    """

    spec: StreamSpec
    amendments: Amendments | None


def by_state(
    dataset: SavableDataset,
    plain: StreamSpec,
    cursor: Cursor,
    share: Share,
    *,
    same: bool,
    note: str = "",
    any_host: AnyHost | None = None,
) -> Amended | None:
    """The stream of a state with amendments, or of a state that a changed mixture continues.

    Args:
        dataset: The configuration as it is now.
        plain: The configuration, compiled.
        cursor: A checked state.
        share: This host's part.
        same: Whether the configuration is the one that the state was saved with.
        note: The reason of the change, for the log.
        any_host: See `WorkerConfig.any_host`.

    Returns:
        None if nothing differs, and nothing was amended before.

    Raises:
        StateError: The amendments in the state are damaged.
        AmendmentError: Something differs that cannot be amended, or the state does not say what it is of; or a dataset
            that was added in the run is not in the configuration.
    """
    new = mixture_of(dataset, plain)
    host, hosts = cursor["host"]
    before = Amendments.of_texts(cursor["amendments"], share, (host, hosts)) if "amendments" in cursor else None
    if same:
        assert before is not None
        _reopen(before, new, plain)
        _join(before.mixture, new)
        return Amended(spec=compiled(dataset, plain, before, share), amendments=before)
    saved = saved_manifest(cursor)
    if saved is None:
        raise AmendmentError(
            "the state has no manifest, so the change cannot be known: states of save_state_rank, save_state_global "
            "and the checkpoint handlers have one"
        )
    now = json.loads(json.dumps(plain.manifest()))
    was = _saved_mixture(dataset, plain, saved, now, [new, *([] if before is None else [before.mixture])])
    amendments = before or Amendments(mixture=was)
    mixtures.check_kind(amendments.mixture, new)
    excluded = _narrowed(amendments, new, saved, now, plain)
    _check_rest(saved, now, amendments.mixture)
    mixtures.note_removed(amendments.mixture, new, saved["leaves"])
    mixtures.know(amendments.mixture, was, new)
    alone = new.per_step == mixtures.ALONE
    cut = None if alone else _cut_by_state(dataset, plain, cursor, share, amendments, any_host)
    progress = from_cursor(cursor, share, plain.program)
    changed = append(amendments, new, plain, share, progress, note, cut, excluded, configured=True)
    _check_removed(amendments, cut)
    if not changed and not amendments.steps and list(amendments.mixture.names()) == list(new.names()):
        return None  # otherwise the same datasets in another order, which would renumber them
    return Amended(spec=compiled(dataset, plain, amendments, share), amendments=amendments)


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


def _cut_by_state(
    dataset: SavableDataset,
    plain: StreamSpec,
    cursor: Cursor,
    share: Share,
    amendments: Amendments,
    any_host: AnyHost | None,
) -> Cut | None:
    """Where a change at the place of a state takes effect; see `cut_of`."""
    if is_plain(order_of(plain)):
        return None
    running = compiled(dataset, plain, amendments, share)
    if running.folds:
        remember_plans(cursor, running)
    known = Share(0, 1, share.lanes) if cursor["host"][1] == 1 else share  # a state of all hosts knows all lanes
    return cut_of(running, known, from_cursor(cursor, known, plain.program), hosts=share.hosts, any_host=any_host)


def _whole(dataset: SavableDataset, plain: StreamSpec, saved: Mapping[str, Any], now: Mapping[str, Any]) -> Mixture:
    """A saved configuration without a blend by weights as a whole. Raises AmendmentError if its mixture changed."""
    if saved["mixture"] != now["mixture"]:
        configured(dataset, plain)
        raise AmendmentError("the saved stream cannot be amended: its outermost dataset is not a blend by weights")
    return mixtures.whole(saved["leaves"], None)


def _reopen(amendments: Amendments, new: Mixture, plain: StreamSpec) -> None:
    """Open the leaves again that the configuration selects more narrowly than the run."""
    leaves = _configured_leaves(new, plain, plain.manifest()["leaves"])
    for name, (place, _) in amendments.exclusions.kept.items():
        if place in leaves:
            reopen(amendments.exclusions, name, leaves[place], amendments.resolved)
    _rename(new, amendments.exclusions)


def _narrowed(
    amendments: Amendments, new: Mixture, saved: Mapping[str, Any], now: dict[str, Any], plain: StreamSpec
) -> list[Selected]:
    """The samples that the configuration excludes. In `now` and `new`, the leaves of the run take their place."""
    exclusions, run = amendments.exclusions, _rows(amendments.mixture, saved["leaves"])
    run |= {name: row for name, (_, row) in exclusions.kept.items()}
    excluded = narrowed(
        exclusions, run, saved["leaves"], _configured_leaves(new, plain, now["leaves"]), amendments.resolved
    )
    _rename(new, exclusions)
    for name, (place, row) in exclusions.kept.items():
        if name in exclusions.nodes:  # what differs in it is an exclusion
            rows = {name: row, place: {}} | {
                each: saved["leaves"][each] for each in (name, place) if each in saved["leaves"]
            }
            now["leaves"] = now["leaves"] | rows
    return excluded


def _rows(mixture: Mixture, saved: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The leaves of a run that are not removed, and their entries in the manifest."""
    found: dict[str, Mapping[str, Any]] = {}
    for unit in mixtures.units(mixture):
        if not unit.removed:
            rows = unit.rows or [saved.get(name, {}) for name in unit.leaves]
            found |= zip(unit.leaves, rows, strict=True)
    return found


def _configured_leaves(new: Mixture, plain: StreamSpec, rows: Mapping[str, Any]) -> dict[str, ConfiguredLeaf]:
    """The leaves of a configuration, by key."""
    nodes = dict(_leaves(new))
    resolved = {"/".join(leaf.key): leaf.leaf for leaf in plain.leaves}
    return {name: ConfiguredLeaf(node=nodes[name], resolved=resolved[name], row=rows[name]) for name in resolved}


def _rename(new: Mixture, exclusions: Exclusions) -> None:
    """Give leaves that are selected more narrowly the keys that they have in the run."""
    names = {place: name for name, (place, _) in exclusions.kept.items() if name in exclusions.nodes}
    for unit in mixtures.units(new):
        unit.leaves = tuple(names.get(name, name) for name in unit.leaves)


def append(
    amendments: Amendments,
    new: Mixture,
    plain: StreamSpec,
    share: Share,
    progress: Progress,
    note: str,
    cut: Cut | None,
    excluded: Sequence[Selected] = (),
    *,
    configured: bool = False,
) -> bool:
    """Append an amendment at a place, if a new mixture or excluded samples make one; return whether they do.

    Args:
        amendments: Of the run until now.
        new: The mixture from now on.
        plain: The configuration, compiled.
        share: This host's part.
        progress: The place.
        note: The reason.
        cut: Where it takes effect; None: at the present round of each lane.
        excluded: Samples to exclude.
        configured: Whether the configuration excludes them.

    Raises:
        AmendmentError: It cannot be amended.
    """
    position = progress.item if cut is None else cut.position
    number = len(amendments.steps)
    changed = mixtures.amend(amendments.mixture, new, f"#{number}", position)
    changed |= exclude(amendments, plain, progress, excluded, configured=configured)
    if changed:
        record(amendments, plain, share, progress, note, cut)
    return changed


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
    known = {"/".join(leaf.key): leaf.leaf for leaf in plain.leaves} | amendments.resolved
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
    amendments: Amendments, plain: StreamSpec, share: Share, progress: Progress, note: str, cut: Cut | None
) -> None:
    """Record where an amendment takes effect that was made to the mixture."""
    ahead = _lanes_ahead(plain, share, progress) if cut is None else np.zeros(share.local_lanes, np.int64)
    amendments.steps.append((progress.step, progress.item, note))
    amendments.cuts.append(cut)
    amendments.ahead.append(ahead)
    amendments.differs |= bool(ahead.any())
    amendments.digest()


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


def _lanes_ahead(spec: StreamSpec, share: Share, progress: Progress) -> Int64Array:
    """Number of samples that each lane of a host took beyond its items, (lanes of the host,)."""
    if spec.program is None:
        return progress.drops.copy()
    taken = np.zeros(share.local_lanes, np.int64)
    for number, state in enumerate(progress.lanes or ()):
        places = walk(spec.program.root.state_form, state, later=True)
        taken[number] = sum(found[1] for form, found in places if isinstance(form, Rounds))
    return taken - lane_rounds(progress.item, share.lanes)[share.host :: share.hosts]


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
    require_cut(order_of(plain))
    manifest = json.loads(json.dumps(plain.manifest()))
    found = mixtures.described(manifest["mixture"], manifest["leaves"])
    if found is None:
        raise AmendmentError("the stream cannot be amended: its outermost dataset is not a blend")
    mixtures.attach(found, mixtures.outermost_blend(dataset))
    return found


def _join(mixture: Mixture, new: Mixture) -> None:
    """Give the children of a run's mixture the nodes of a configuration. Raises AmendmentError if one is missing."""
    nodes = {unit.leaves: unit.node for unit in mixtures.units(new)}
    for unit in mixtures.units(mixture):
        unit.node = nodes.get(unit.leaves)
        if unit.node is None and not unit.removed:
            raise AmendmentError(
                f"{unit.leaves[0]}: the run has this dataset, the configuration does not: it was added while the run "
                f"went on; write it into the configuration, and restore with on_change='amend'"
            )
    mixtures.join_blends(mixture, new)


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
        lines += _leaf_changes(name, row, now["leaves"].get(name, row))
    if lines:
        _refuse(lines)


def _refuse(lines: Sequence[str]) -> NoReturn:
    said = "\n".join(f"  {line}" for line in lines)
    raise AmendmentError(
        f"the change cannot be amended, as it changes the order of datasets that stay:\n{said}\nLeave these as they "
        f"were. Samples that were added to a dataset can be added as a dataset of their own"
    )


def _leaf_changes(name: str, row: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Differences between two entries of a leaf in manifests."""
    fields = [field for field in dict.fromkeys((*row, *other)) if field not in ("number", "commit")]
    return [
        f"{name}: {field} was {row.get(field)!r}, is {other.get(field)!r}"
        for field in fields
        if row.get(field) != other.get(field)
    ]


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


def compiled(dataset: SavableDataset, plain: StreamSpec, amendments: Amendments, share: Share) -> StreamSpec:
    """A configuration compiled with the amendments of its run."""
    alone = amendments.mixture.per_step == mixtures.ALONE
    if not alone:
        dataset = mixtures.replaced(dataset, mixtures.rebuilt(amendments.mixture, AmendedAt, RemovedLeaf.of))
    compile_ = partial(
        compile_dataset,
        hosts=share.hosts,
        cache_pool=plain.cache_pool,
        resolved=_resolved(plain, amendments),
        begins=() if alone and not is_one_leaf(plain) else amendments.begins(share),
    )
    excluding = Excluding.of(amendments.exclusions, [name for name, _ in _leaves(amendments.mixture)])
    spec = compile_(excluding.over(dataset))
    if (again := excluding.in_other_lanes(spec)) is not None:
        excluding, spec = again, compile_(again.over(dataset))
    _check_kept(amendments.exclusions, spec)
    spec = excluding.dropped_from(spec, amendments.taken(share))
    if not alone and isinstance(router := blend_of(order_of(spec)), EpochSegments):
        amendments.mixture.lengths = [*router.samples]
    _note_rows(amendments.mixture, plain, spec)
    amendments.spec = dataclasses.replace(spec, described_by=plain.manifest(), observers=plain.observers)
    return amendments.spec


def _note_rows(mixture: Mixture, plain: StreamSpec, spec: StreamSpec) -> None:
    """Keep the manifest's entries of leaves that the configuration lacks, so that a later change of them is found."""
    configured = {"/".join(leaf.key) for leaf in plain.leaves}
    for unit in mixtures.units(mixture):
        if unit.rows is None and not configured.issuperset(unit.leaves):
            rows = spec.manifest()["leaves"]
            unit.rows = [dict(rows.get(name, {})) for name in unit.leaves]


def _resolved(plain: StreamSpec, amendments: Amendments) -> list[Resolved]:
    """All leaves of a run, opened. Those of the configuration are open."""
    known = {"/".join(leaf.key): leaf.leaf for leaf in plain.leaves} | amendments.resolved
    resolved: list[Resolved] = []
    for name, node in _leaves(amendments.mixture):
        if isinstance(node, RemovedLeaf):
            resolved.append(node.resolve())
            continue
        if name not in known:
            known[name] = amendments.resolved[name] = node.resolve()
        resolved.append(known[name])
    amendments.exclusions.evaluate(lambda name: known[name].source, where)
    return resolved


def _check_kept(exclusions: Exclusions, spec: StreamSpec) -> None:
    """Check the order of leaves that the configuration selects more narrowly. Raises AmendmentError if it changed."""
    rows = json.loads(json.dumps(spec.manifest()))["leaves"]
    kept = [(name, row) for name, (_, row) in exclusions.kept.items() if name in exclusions.nodes]
    lines = [line for name, row in kept for line in _leaf_changes(name, row, rows[name])]
    if lines:
        _refuse(lines)


def _leaves(mixture: Mixture) -> Iterator[tuple[str, Any]]:
    """Each leaf's key and node."""
    for unit in mixtures.units(mixture):
        rows = unit.rows or [{} for _ in unit.leaves]
        nodes = [RemovedLeaf.of(name, row) for name, row in zip(unit.leaves, rows, strict=True)]
        yield from zip(unit.leaves, nodes if unit.node is None else mixtures.leaf_nodes(unit.node), strict=True)
