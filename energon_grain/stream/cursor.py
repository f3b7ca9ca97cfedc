# SPDX-License-Identifier: Apache-2.0
"""The state of a stream: one small JSON object.

    {"version": 1, "order_version": 2, "step": 1200, "pass": 0, "pass_step": 1200, "item": 38400, "ended": false,
     "lanes": 48, "fingerprint": "6f…", "history": [[0, 0, 0, 0, 32]], "host": [0, 1], "drops": "", "held": "",
     "skipped": [], "check": "8c…"}

`version` is the version of this format. `order_version` is the version of the streams: see `ORDER_VERSION`.
`host` is the [host, hosts] that saved the cursor. A cursor merged from all hosts has [0, 1], like that of one host.
`drops` is empty (or missing) until a sample is dropped. Then it holds the drop count of each lane of the host, packed.
`held` is the state of each lane of the host, if lanes run a program (filters, groups, packs): the positions that each
lane holds, as packed differences. `skipped` lists the [step, steps] of skipped ranges.
`plans` exists if the order folds over known values of samples (`samplers.fold`): the carries to continue from, packed.
`manifest` holds all settings, to name those that differ in a mismatch: JSON, compressed by zlib, in base64 (older
releases wrote plain JSON). A *saved* cursor always has it; others only with few datasets (`SHORT_MANIFEST`).
`check` is a checksum of everything else: 8 bytes of BLAKE2b of the JSON with sorted keys and no spaces. Cursors without
one, from older releases, are accepted.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import reprlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from energon_grain.errors import FingerprintError, StateError, public
from energon_grain.samplers.fold import flat, unflat
from energon_grain.stream.extensions import MERGE_AMENDMENTS, extension
from energon_grain.stream.passes import POSITIONS, PassPlan, Progress, Segment, Share, history_holds
from energon_grain.stream.spec import Program, StreamSpec
from energon_grain.stream.state import Codec, pack_integers, unpack_integers

VERSION = 1
ORDER_VERSION = 2
"""Incremented by each revision that changes the stream of any configuration.

Operators whose items changed declare the first version that is valid for them (`LaneOperator.order_version`). States of
an older version continue exactly in all other configurations, and are refused by these operators.

1. Revisions before 22 November 2026.
2. Packs of several lanes take turns (docs/decisions/lane-operators.md); states of generators hold batches.
"""
_SAVED_BY = {1: "a development revision from before 22 November 2026 (such as git revision d290e64; no release)"}
"""Revisions that saved states of each earlier order version, and can continue them."""
Cursor = dict[str, Any]

_logger = logging.getLogger("energon_grain")
_INTEGERS = ("step", "pass", "pass_step", "item", "lanes")
_FIELDS = frozenset(
    (
        *_INTEGERS,
        "version",
        "order_version",
        "ended",
        "fingerprint",
        "history",
        "host",
        "drops",
        "held",
        "skipped",
        "plans",
        "amendments",
        "manifest",
        "check",
    )
)
_OPTIONAL = ("plans", "amendments", "manifest", "order_version")
_LARGEST = 1 << 53
"""Numbers in a state are below this limit: JSON is exact up to it, and products fit into 64 bits."""
_MANIFEST_BYTES = 1 << 30
SHORT_MANIFEST = 640
"""Maximum length of a manifest that every cursor includes: that of a few leaves. Cursors then stay below 1 KiB."""
_BEYOND = 4096
"""Steps that a cursor may be past the end of a pass, if readers take steps in turns."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def to_cursor(
    progress: Progress,
    share: Share,
    fingerprint: str,
    *,
    held: str = "",
    plans: str = "",
    amendments: Sequence[str] = (),
    manifest: str | None = None,
) -> Cursor:
    """The cursor of one host's progress. JSON-native; below 1 KiB without drops, lane states and a manifest."""
    cursor: Cursor = {
        "version": VERSION,
        "order_version": ORDER_VERSION,
        "step": progress.step,
        "pass": progress.pass_number,
        "pass_step": progress.pass_step,
        "item": progress.item,
        "ended": progress.ended,
        "lanes": share.lanes,
        "fingerprint": fingerprint,
        "history": list(map(list, progress.history)),
        "host": [share.host, share.hosts],
        "drops": pack_integers(progress.drops.tolist()) if np.count_nonzero(progress.drops) else "",
        "held": held,
        "skipped": list(map(list, progress.skipped)),
        **({"plans": plans} if plans else {}),
        **({"amendments": list(amendments)} if amendments else {}),
        **({} if manifest is None else {"manifest": manifest}),
    }
    # The same text as from `_CANONICAL`, because all texts are ASCII, but faster.
    content = msgspec.json.encode(cursor, order="sorted")
    cursor["check"] = hashlib.blake2b(content, digest_size=8).hexdigest()
    return cursor


def pack_manifest(manifest: Mapping[str, Any]) -> str:
    """A manifest in the form of a saved cursor. Compressed, because many leaves make it long and repetitive."""
    return base64.b64encode(zlib.compress(json.dumps(manifest, separators=(",", ":")).encode())).decode()


def _unpacked_manifest(packed: str) -> Any:
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(base64.b64decode(packed, validate=True), _MANIFEST_BYTES)
        if not unpacking.eof:
            raise ValueError(f"it is truncated, or unpacks to more than {_MANIFEST_BYTES} bytes")
        return json.loads(text)
    except (ValueError, zlib.error, RecursionError) as error:
        raise StateError(f"the state's 'manifest' is damaged: {error}") from error


def checksum(cursor: Mapping[str, Any]) -> str:
    """16 hex digits that depend on all other fields of the cursor."""
    content = {name: value for name, value in cursor.items() if name != "check"}
    return hashlib.blake2b(_CANONICAL.encode(content).encode(), digest_size=8).hexdigest()


@public
def merge_cursors(cursors: Sequence[Mapping[str, Any]]) -> Cursor:
    """Merge the cursors of all hosts, saved at the same step, into one.

    Raises:
        StateError: They are not the cursors of all hosts of one run at one step.
    """
    ordered = _of_all_hosts(cursors)
    # A host that had a drop has a shorter history than one that had none.
    history = max((cursor["history"] for cursor in ordered), key=lambda segments: segments[0])
    merged: Cursor = {**ordered[0], "host": [0, 1], "history": history}
    if any(cursor["drops"] for cursor in ordered):
        merged["drops"] = _merged_drops(ordered)
    if any(cursor["held"] for cursor in ordered):
        merged["held"] = _merged_held(ordered)
    if any("plans" in cursor for cursor in ordered):
        merged["plans"] = _merged_plans(ordered)
    if any("amendments" in cursor for cursor in ordered):
        merged["amendments"] = extension(MERGE_AMENDMENTS)(ordered)
    merged["check"] = checksum(merged)
    return merged


def _of_all_hosts(cursors: Sequence[Mapping[str, Any]]) -> list[Cursor]:
    """The cursors, checked and sorted by host. Raises as `merge_cursors`."""
    if not cursors:
        raise StateError("no states to merge; pass the states of all hosts")
    ordered = sorted((check_cursor(cursor) for cursor in cursors), key=lambda cursor: cursor["host"][0])
    hosts = ordered[0]["host"][1]
    if [cursor["host"] for cursor in ordered] != [[host, hosts] for host in range(hosts)]:
        raise StateError(
            f"the states of all hosts are needed, one each; these are of {[c['host'] for c in ordered]} (host, hosts)"
        )
    for name in ("order_version", "step", "pass", "pass_step", "item", "ended", "lanes", "fingerprint"):
        values = [cursor[name] for cursor in ordered]
        if values.count(values[0]) < len(values):
            raise StateError(f"the hosts' states were not saved at the same step of one run: {name} is {values}")
    return ordered


def _merged_drops(ordered: Sequence[Cursor]) -> str:
    lanes, hosts = ordered[0]["lanes"], len(ordered)
    drops = np.zeros(lanes, np.int64)
    for host, cursor in enumerate(ordered):
        drops[host::hosts] = _drops_of(cursor, lanes // hosts)
    return pack_integers(drops.tolist())


def _merged_held(ordered: Sequence[Cursor]) -> str:
    hosts = len(ordered)
    lanes: list[list[int]] = [[] for _ in range(ordered[0]["lanes"])]
    for host, cursor in enumerate(ordered):
        lanes[host::hosts] = _held_of(cursor, len(lanes) // hosts)
    return pack_integers([value for lane in lanes for value in (len(lane), *lane)])


def _merged_plans(ordered: Sequence[Cursor]) -> str:
    """The earliest carry of each fold. It is valid for all hosts, even if lanes of some hosts lag behind others."""
    try:
        plans = [unflat(unpack_integers(cursor["plans"])) for cursor in ordered if "plans" in cursor]
        return pack_integers(flat([min(of_fold) for of_fold in zip(*plans, strict=True)]))
    except ValueError as error:
        raise StateError(f"the hosts' states do not fit together: their 'plans' are damaged: {error}") from error


def from_cursor(cursor: Mapping[str, Any], share: Share, program: Program | None = None) -> Progress:
    """One host's progress from a cursor saved by any number of hosts.

    Raises StateError if the cursor is malformed or does not cover the lanes of this host, and HostsError if samples
    were dropped and this number of hosts does not divide the number of lanes.
    """
    checked = check_lanes(cursor, share)
    lanes: int = checked["lanes"]
    host, hosts = checked["host"]
    drops = np.zeros(share.local_lanes, np.int64)
    states: tuple[Any, ...] | None = None
    if checked["held"]:
        if program is None:
            raise StateError(
                "the state is of a dataset that filters, groups or packs ('held' is not empty), but this one does not"
            )
        saved = _held_of(checked, lanes // hosts)
        codec = Codec(program.root.state_form)
        states = tuple(_lane_state(codec, values) for values in _own(saved, checked, share, "held"))
    if checked["drops"]:
        drops = np.array(_own(_drops_of(checked, lanes // hosts).tolist(), checked, share, "dropped"), np.int64)
    elif states is None and hosts > 1 and hosts != share.hosts:
        _logger.warning(
            "restoring the state of host %d of %d on %d hosts: it records no dropped samples, which is exact only if "
            "the other hosts dropped none either; save_state_global and the checkpoint handler keep the states of all "
            "hosts",
            host,
            hosts,
            share.hosts,
        )
    history = tuple(cast("Segment", tuple(segment)) for segment in checked["history"])
    return Progress(
        step=checked["step"],
        pass_number=checked["pass"],
        pass_step=checked["pass_step"],
        item=checked["item"],
        ended=checked["ended"],
        drops=drops,
        lanes=states,
        history=history,
        skipped=tuple((step, steps) for step, steps in checked["skipped"]),
    )


def restored(
    cursor: Mapping[str, Any], spec: StreamSpec, share: Share, now: PassPlan, *, allow_changes: bool
) -> Progress:
    """The progress of a cursor, in a stream that may be cut into batches differently than when it was saved.

    Args:
        cursor: A cursor from `Stream.cursor`.
        spec: The compiled dataset.
        share: This host's share.
        now: The plan of the stream as it is cut now.
        allow_changes: Whether the cursor may be of other data, where its position may not exist.

    Raises:
        StateError: The cursor is malformed or cannot be continued.
        HostsError: The number of hosts does not fit the lanes of the cursor.
    """
    progress = from_cursor(cursor, share, spec.program)
    if spec.program is not None and progress.lanes is None and progress.item:
        raise StateError(
            f"the state was saved at item {progress.item} by a dataset that does not filter, group or pack ('held' is "
            f"empty), but this one does: the state lacks the positions of its lanes, so it cannot continue, not even "
            f"with allow_changes"
        )
    _check_place(progress, spec, allow_changes=allow_changes)
    plan = PassPlan.of(spec, share.hosts, progress.pass_number)
    if not allow_changes:
        _check_reach(progress, spec, plan.length)
    if progress.history[-1][4] != now.global_batch:
        progress = _cut_from_here(progress, now.global_batch)
    if not progress.ended and plan.is_over(progress.pass_step, progress.item):
        progress = progress._replace(ended=True)
    if not history_holds(spec, share.hosts, progress):
        # Passes before this one were cut differently (limit, last_batch) than they would be now.
        progress = progress.forgetting(now.global_batch)
    return progress


def _cut_from_here(progress: Progress, global_batch: int) -> Progress:
    """The same position, with another batch size from here on."""
    segment = (progress.step, progress.pass_number, progress.pass_step, progress.item, global_batch)
    kept = tuple(old for old in progress.history if old[0] < progress.step)
    return progress._replace(history=(*kept, segment))


def remember_plans(cursor: Mapping[str, Any], spec: StreamSpec) -> None:
    """Restore the plans of a cursor into the folds of the order, if it has any. `restored` has accepted the cursor.

    Raises StateError if the plans do not match its position, or are missing. Without them, all windows before it would
    have to be planned again.
    """
    checked = check_cursor(cursor)
    host, hosts = checked["host"]
    whole = from_cursor(checked, Share(host, hosts, checked["lanes"]), spec.program)
    place = whole.pass_number, whole.item, int(whole.drops.min()), whole.lanes
    if checked.get("plans"):
        spec.remember(checked["plans"], *place)
    elif whole.item:
        raise StateError(f"the state has no 'plans', which states of this dataset need at item {whole.item}")


def _check_place(progress: Progress, spec: StreamSpec, *, allow_changes: bool) -> None:
    """Refuse a state that no stream saves: the number of items must follow from the last entry of the history.

    A finite pass may be further: at its end, items of lanes that have none left are passed over.
    """
    _check_history(progress, spec)
    step, item = progress.step, progress.item
    begin, pass_number, _, first_item, size = progress.history[-1]
    continues = spec.endless or pass_number == progress.pass_number
    through, within = first_item + (step - begin) * size, progress.pass_step * size
    expected = through if continues else within
    if item == expected or (allow_changes and item in (through, within)):
        return
    if item > expected and (allow_changes or not spec.endless) and _passes_over(progress, spec):
        return
    raise StateError(
        f"the state's 'item' is {item}, but 'step' {step} and 'history' lead to item {expected}: {step - begin} "
        f"steps of {size} items from item {first_item * continues} on"
    )


def _check_history(progress: Progress, spec: StreamSpec) -> None:
    """Refuse a history, pass or step of the pass that contradicts the step number."""
    step, item = progress.step, progress.item
    begin, pass_number, first_step, _, _ = progress.history[-1]
    if begin > step:
        raise StateError(f"the state's 'history' ends with an entry of step {begin}, behind its 'step' {step}")
    if any(first + steps > step for first, steps in progress.skipped):
        raise StateError(f"the state's 'skipped' goes beyond its 'step' {step}")
    if pass_number > progress.pass_number:
        raise StateError(f"the state's 'history' is of pass {pass_number}, behind its 'pass' {progress.pass_number}")
    if spec.program is None and spec.order.start(progress.pass_number) + item >= POSITIONS:
        raise StateError(f"the state's 'pass' is {progress.pass_number}: the order has no positions that far on")
    same = pass_number == progress.pass_number
    most = step - begin + first_step * same
    if progress.pass_step > most or (same and progress.pass_step != most):
        raise StateError(f"the state's 'pass_step' is {progress.pass_step}, which 'step' and 'history' contradict")


def _passes_over(progress: Progress, spec: StreamSpec) -> bool:
    """Whether a pass may have passed over items: it ended, samples were dropped, or each lane ends separately."""
    return progress.ended or spec.program is not None or bool(progress.drops.any())


def _check_reach(progress: Progress, spec: StreamSpec, length: int | None) -> None:
    """Refuse a state that no stream of this data saves."""
    if spec.program is not None:
        if progress.drops.any():
            raise StateError("the state's drops are in 'drops', but this dataset records them in 'held' by lane")
        return
    if length is not None and progress.item >= length and not progress.ended:
        raise StateError(f"the state's 'item' is {progress.item} in an unfinished pass, but passes have {length} items")
    if length is not None and progress.item > length + _BEYOND * progress.history[-1][4]:
        raise StateError(f"the state's 'item' is {progress.item}, far past the end of a pass of {length} items")
    if progress.drops.max() > spec.patience * (progress.item // spec.lanes + 2):
        raise StateError(
            f"the state's 'drops' report {progress.drops.max()} drops in one lane before item {progress.item}, more "
            f"than this dataset allows"
        )


def _own(values: list[Any], cursor: Mapping[str, Any], share: Share, what: str) -> list[Any]:
    """The values of a host's lanes, from the values of each lane of the host (or of all hosts) that saved them."""
    host, hosts = cursor["host"]
    if (host, hosts) == (share.host, share.hosts):
        return values
    if hosts == 1:
        share.require_whole_lanes("samples were dropped or held before this state was saved")
        return values[share.host :: share.hosts]
    raise StateError(
        f"the state of host {host} of {hosts} records the {what} samples of its own lanes only, so it cannot be "
        f"restored on {share.hosts} hosts; save with `save_state_global` or the checkpoint handler, which keep the "
        f"states of all hosts"
    )


def check_lanes(cursor: Mapping[str, Any], share: Share) -> Cursor:
    """Check a cursor, and that its run had the same number of lanes.

    Raises StateError if it is malformed or has another number of lanes.
    """
    checked = check_cursor(cursor)
    lanes = checked["lanes"]
    if lanes != share.lanes:
        saved = Share(share.host, share.hosts, lanes)
        where = ""
        if not saved.whole_lanes:
            why = "samples were dropped" if checked["drops"] else "it filters, packs or groups"
            need = "as" if checked["drops"] or checked["held"] else "if"
            where = f", and run it on one of {saved.possible_hosts} hosts, {need} {why}"
        raise StateError(
            f"the state was saved with lanes={lanes}, but this run has lanes={share.lanes}: pass lanes={lanes}, "
            f"because the number of lanes is constant in a run{where}"
        )
    return checked


def saved_manifest(cursor: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The manifest of a saved cursor; None: it has none. Raises StateError if it is damaged."""
    saved = cursor.get("manifest")
    if isinstance(saved, str):
        saved = _unpacked_manifest(saved)
    return cast("Mapping[str, Any]", saved) if isinstance(saved, Mapping) else None


def differences(cursor: Mapping[str, Any], fingerprint: str, manifest: Mapping[str, Any]) -> list[str]:
    """One line for each setting that has changed since the cursor was saved. Empty if it belongs to this stream.

    If the cursor has no manifest, one line says that something differs. Raises StateError if the manifest is damaged.
    """
    if cursor.get("fingerprint") == fingerprint:
        return []
    saved = saved_manifest(cursor)
    now = json.loads(json.dumps(manifest))  # in the form that is saved
    return (_differences(saved, now, "") if saved is not None else []) or [
        f"fingerprint: saved {cursor.get('fingerprint')}, now {fingerprint} (states of save_state_rank also list the "
        f"settings that differ; those of get_state only with few datasets)"
    ]


def check_fingerprint(cursor: Mapping[str, Any], fingerprint: str, manifest: Mapping[str, Any]) -> None:
    """Refuse a cursor of another configuration or of other data.

    Raises FingerprintError if they differ. The message names each setting that differs, if the cursor has a manifest.
    """
    if lines := differences(cursor, fingerprint, manifest):
        listed = "\n".join(f"  {line}" for line in lines)
        sizes = [(int(found[1]), int(found[2])) for found in map(_SIZES.search, lines) if found]
        appended = "" if not any(before < now for before, now in sizes) else _APPENDED
        raise FingerprintError(
            f"the saved state belongs to another stream:\n{listed}\nRestore with the configuration and data that it "
            f"was saved with. {appended}{_AMENDABLE if _is_amendable(lines) else ''}To continue at the same position "
            f"of the changed stream, which repeats and loses samples, pass on_change='position' (or allow_changes=True)"
        )


def _is_amendable(lines: Sequence[str]) -> bool:
    """Whether only weights differ, or datasets that were added, removed or selected more narrowly."""
    sizes = [(int(found[1]), int(found[2])) for found in map(_SIZES.search, lines) if found]
    fewer = bool(sizes) and all(after < before for before, after in sizes)
    ends = (": not set when saved", ": saved {", "now not set")
    return all(
        line.startswith("mixture.")
        or (line.startswith("leaves.") and any(end in line for end in ends))
        or re.match(rf"leaves\..*\.({'number|samples|content|where|block|window' if fewer else 'number'})[.:]", line)
        for line in lines
    )


_AMENDABLE = (
    "Or pass on_change='amend': every dataset that stays continues exactly where it is, and the new mixture holds from "
    "this step on. "
)


_SIZES = re.compile(r"\.samples: saved (\d+), now (\d+)$")
_APPENDED = (
    "If shards were appended since, the earlier splits are stored beside the data: use split_config="
    "'split-first-N-shards.yaml', where N is the number of shards at that time. "
)


def _differences(saved: Any, now: Any, path: str) -> list[str]:
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        before, after = cast("Mapping[str, Any]", saved), cast("Mapping[str, Any]", now)
        lines: list[str] = []
        for name in dict.fromkeys([*before, *after]):
            place = f"{path}.{name}" if path else name
            if name not in before:
                lines.append(f"{place}: not set when saved, now {after[name]!r}")
            elif name not in after:
                lines.append(f"{place}: saved {before[name]!r}, now not set")
            else:
                lines += _differences(before[name], after[name], place)
        return lines
    return [] if saved == now else [f"{path}: saved {saved!r}, now {now!r}"]


def check_cursor(cursor: Any) -> Cursor:
    """A checked copy of a cursor. Raises StateError if it is malformed or of another version."""
    given = _fields_of(cursor)
    try:
        found = checksum(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"the state's {_not_native(given)!r} is not JSON ({type(error).__name__}: {error})") from error
    _check_shapes(given)
    if given["pass_step"] > given["step"]:
        raise StateError(f"the state's 'pass_step' is {given['pass_step']}, but its 'step' is only {given['step']}")
    if given.setdefault("check", found) != found:
        raise StateError(
            f"the state is damaged: its 'check' is {reprlib.repr(given['check'])}, but its content has {found} (to "
            f"change a state on purpose, remove 'check')"
        )
    _settle_order_version(given, checksummed="check" in cursor)
    hosts, lanes = given["host"][1], given["lanes"]
    if lanes % hosts and (given["held"] or given["drops"]):
        raise StateError(f"the state has {lanes} lanes, which is not a multiple of the {hosts} hosts in its 'host'")
    given["host"] = list(given["host"])
    given["history"] = [list(segment) for segment in given["history"]]
    return given


def _fields_of(cursor: Any) -> Cursor:
    """A copy of a cursor of this version. Adds fields that older releases did not write."""
    if not isinstance(cursor, Mapping):
        raise StateError(f"expected a state as a JSON object, got a {type(cursor).__name__}")
    given = dict(cast("Mapping[str, Any]", cursor))
    version = given.get("version")
    if {"worker_states", "micro_batch_size"} <= given.keys():
        raise StateError(
            "this state was saved by Megatron-Energon, which has another order, so it cannot be continued; make a new "
            "loader, and `skip` the finished steps"
        )
    if type(version) is not int or version != VERSION:
        raise StateError(f"the state has version {reprlib.repr(version)}; this release reads version {VERSION}")
    for name in given:
        if name not in _FIELDS:
            raise StateError(f"the state has {reprlib.repr(name)}, which is not a field of states: it is damaged")
    for name in ("drops", "held"):
        given.setdefault(name, "")
    given.setdefault("skipped", [])
    return given


def _check_shapes(given: Cursor) -> None:
    """Refuse a field that is missing or has an invalid value."""
    for name, (fits, meant) in _SHAPES.items():
        if (name in given and not fits(given[name])) or (name not in given and name not in _OPTIONAL):
            raise StateError(f"the state's {name!r} is {reprlib.repr(given.get(name))}; expected {meant}")


def _settle_order_version(given: Cursor, *, checksummed: bool) -> None:
    """Add the order version to a state that lacks it: such states with a checksum are of version 2, others of 1.

    Raises StateError if the order version is of a later revision.
    """
    if "order_version" not in given:
        given["order_version"] = 2 if checksummed else 1
        given["check"] = checksum(given)
    if given["order_version"] > ORDER_VERSION:
        raise StateError(
            f"the state's 'order_version' is {given['order_version']}: it was saved by a later revision of "
            f"energon-grain, whose streams differ; this one continues order versions up to {ORDER_VERSION}. Restore it "
            f"with the revision that saved it, or a later one"
        )


def check_order(cursor: Mapping[str, Any], spec: StreamSpec) -> None:
    """Refuse a checked cursor of an order version with another stream for this configuration.

    Raises StateError if it is one.
    """
    version = cursor["order_version"]
    if version < spec.order_version:
        raise StateError(
            f"the state's order_version is {version}: it was saved by {_SAVED_BY[version]}, and the stream of this "
            f"dataset, which packs or generates, changed with order version {spec.order_version}. Only such a "
            f"revision continues it with the same batches. With this revision, make a new loader and `skip` the "
            f"finished steps; or, if the dataset packs, pass allow_changes=True to continue at the same position with "
            f"other packs"
        )


def _not_native(given: Mapping[str, Any]) -> str:
    """The first field that is not JSON."""
    for name, value in given.items():
        try:
            _CANONICAL.encode(value)
        except (TypeError, ValueError, RecursionError):
            return name
    raise AssertionError


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _rows(value: Any, count: int) -> bool:
    """Whether a value is a list of lists of `count` numbers."""
    return isinstance(value, list | tuple) and all(_row(row, count) for row in cast("Sequence[Any]", value))


def _row(value: Any, count: int) -> bool:
    if not isinstance(value, list | tuple):
        return False
    row = cast("Sequence[Any]", value)
    return len(row) == count and all(_whole(entry) for entry in row)


def _is_history(value: Any) -> bool:
    if not _rows(value, 5) or not value:
        return False
    steps = [row[0] for row in value]
    return all(before < step for before, step in pairwise(steps)) and all(row[4] > 0 for row in value)


_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_INTEGERS, (_whole, "a number from 0 to 2**53 - 1")),
    **dict.fromkeys(("lanes", "order_version"), (lambda value: _whole(value) and value > 0, "a positive number")),
    "ended": (lambda value: isinstance(value, bool), "true or false"),
    "fingerprint": (lambda value: isinstance(value, str), "a string"),
    "host": (lambda value: _row(value, 2) and value[0] < value[1], "[host, hosts]"),
    "history": (_is_history, "a list of [step, pass, pass step, item, G], in the order of steps"),
    "drops": (lambda value: isinstance(value, str), "a string"),
    "held": (lambda value: isinstance(value, str), "a string"),
    "skipped": (lambda value: _rows(value, 2), "a list of [step, steps]"),
    "plans": (lambda value: isinstance(value, str), "a string"),
    "amendments": (
        lambda value: (
            isinstance(value, list | tuple)
            and len(cast("Sequence[Any]", value)) in range(2, 7)
            and all(isinstance(text, str) for text in cast("Sequence[Any]", value))
        ),
        "a list of 2 to 6 strings",
    ),
    "manifest": (lambda value: isinstance(value, str | Mapping), "a string, or an object of an older release"),
}
"""For each field, a check and a description of valid values."""


def _lane_state(codec: Codec, values: list[int]) -> Any:
    """The state of one lane. Raises StateError if the integers do not encode a state of the program."""
    try:
        return codec.decode(values)
    except StateError as error:
        raise StateError(f"the state's 'held' does not fit the lanes of this dataset: {error}") from error


def _unpacked(cursor: Mapping[str, Any], name: str) -> list[int]:
    try:
        values = unpack_integers(cursor[name])
    except StateError as error:
        raise StateError(f"the state's {name!r} is damaged: {error}") from error
    if max(values, default=0) >= _LARGEST:
        raise StateError(f"the state's {name!r} is damaged: it holds {reprlib.repr(max(values))}, which is too large")
    return values


def _held_of(cursor: Mapping[str, Any], lanes: int) -> list[list[int]]:
    """The integers of each lane."""
    values = _unpacked(cursor, "held")
    found: list[list[int]] = []
    at = 0
    while at < len(values):
        found.append(values[at + 1 : at + 1 + values[at]])
        at += 1 + values[at]
    if len(found) != lanes or at != len(values):
        raise StateError(f"the state's 'held' is of {len(found)} lanes (or a part of one), expected {lanes}")
    return found


def _drops_of(cursor: Mapping[str, Any], lanes: int) -> npt.NDArray[np.int64]:
    if not cursor["drops"]:
        return np.zeros(lanes, np.int64)
    drops = _unpacked(cursor, "drops")
    if len(drops) != lanes:
        raise StateError(f"the state's 'drops' are of {len(drops)} lanes, expected {lanes}")
    return np.asarray(drops, np.int64)
