"""The state of a stream: one small JSON object.

    {"version": 1, "step": 1200, "pass": 0, "pass_step": 1200, "item": 38400, "ended": false, "lanes": 48,
     "fingerprint": "6f…", "history": [[0, 0, 0, 0, 32]], "host": [0, 1], "drops": "", "held": "", "skipped": []}

`host` is the [host, hosts] that it was saved on; a cursor merged of all hosts' says [0, 1], as that of a single one.
`drops` is empty as long as no sample was dropped, and else holds the count of each lane of that host, packed; a cursor
without it means the same as an empty one. `held` is the state of each lane of that host where lanes have a program
(filters, groups, packs): positions of what each holds, as packed differences. `skipped` has the [step, steps] of ranges
that were jumped over. A *saved* cursor also has a `"manifest"`, from which a mismatch names each
setting that differs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from energon_grain.errors import FingerprintError, StateError
from energon_grain.stream.operators.program import read_state
from energon_grain.stream.packed_integers import pack_integers, unpack_integers
from energon_grain.stream.progress import Progress, Segment
from energon_grain.stream.share import Share
from energon_grain.stream.spec import Program

VERSION = 1
Cursor = dict[str, Any]

_logger = logging.getLogger("energon_grain")
_INTEGERS = ("step", "pass", "pass_step", "item", "lanes")


def to_cursor(
    progress: Progress, share: Share, fingerprint: str, *, held: str = "", manifest: dict[str, Any] | None = None
) -> Cursor:
    """The cursor of one host's progress. JSON-native; under 1 KiB without drops, lane states and a manifest."""
    cursor: Cursor = {
        "version": VERSION,
        "step": progress.step,
        "pass": progress.pass_number,
        "pass_step": progress.pass_step,
        "item": progress.item,
        "ended": progress.ended,
        "lanes": share.lanes,
        "fingerprint": fingerprint,
        "history": [list(segment) for segment in progress.history],
        "host": [share.host, share.hosts],
        "drops": pack_integers(progress.drops.tolist()) if progress.drops.any() else "",
        "held": held,
        "skipped": [list(skipped) for skipped in progress.skipped],
    }
    if manifest is not None:
        cursor["manifest"] = manifest
    return cursor


def merge_cursors(cursors: Sequence[Mapping[str, Any]]) -> Cursor:
    """One cursor for all hosts, from the cursors of each, saved at one step.

    Raises:
        StateError: They are not the cursors of all hosts of one run at one step.
    """
    if not cursors:
        raise StateError("there is no state to merge; give the states of all hosts")
    ordered = sorted((check_cursor(cursor) for cursor in cursors), key=lambda cursor: cursor["host"][0])
    hosts = ordered[0]["host"][1]
    if [cursor["host"] for cursor in ordered] != [[host, hosts] for host in range(hosts)]:
        raise StateError(
            f"the states of all hosts are needed, one each; these are of {[c['host'] for c in ordered]} (host, hosts)"
        )
    first = ordered[0]
    for name in ("step", "pass", "pass_step", "item", "ended", "lanes", "fingerprint"):
        values = [cursor[name] for cursor in ordered]
        if any(value != values[0] for value in values):
            raise StateError(f"the hosts' states were not saved at the same step of one run: {name} is {values}")
    # A host that met a drop remembers less than one that did not.
    history = max((cursor["history"] for cursor in ordered), key=lambda segments: segments[0] if segments else [])
    merged: Cursor = {**first, "host": [0, 1], "history": history}
    if any(cursor["drops"] for cursor in ordered):
        drops = np.zeros(first["lanes"], np.int64)
        for host, cursor in enumerate(ordered):
            drops[host::hosts] = _drops_of(cursor, first["lanes"] // hosts)
        merged["drops"] = pack_integers(drops.tolist())
    if any(cursor["held"] for cursor in ordered):
        lanes: list[list[int]] = [[] for _ in range(first["lanes"])]
        for host, cursor in enumerate(ordered):
            lanes[host::hosts] = _held_of(cursor, first["lanes"] // hosts)
        merged["held"] = pack_integers([value for lane in lanes for value in (len(lane), *lane)])
    return merged


def from_cursor(cursor: Mapping[str, Any], share: Share, program: Program | None = None) -> Progress:
    """One host's progress from a cursor that any number of hosts saved.

    Args:
        cursor: What `to_cursor` or `merge_cursors` returned.
        share: The host.
        program: What lanes do; None where nothing but positions is needed.

    Raises:
        StateError: The cursor is malformed, or speaks for other hosts' lanes than this host needs.
        HostsError: Samples were dropped, and this number of hosts does not divide the lanes.
    """
    checked = check_lanes(cursor, share)
    lanes: int = checked["lanes"]
    host, hosts = checked["host"]
    drops = np.zeros(share.local_lanes, np.int64)
    states: tuple[Any, ...] | None = None
    if checked["held"]:
        if program is None:
            raise StateError("the state is of a dataset that filters, groups or packs, which this one does not")
        saved = _held_of(checked, lanes // hosts)
        states = tuple(read_state(program, values) for values in _own(saved, checked, share, "holds"))
    if checked["drops"]:
        drops = np.array(_own(_drops_of(checked, lanes // hosts).tolist(), checked, share, "was dropped"), np.int64)
    elif states is None and hosts > 1 and hosts != share.hosts:
        _logger.warning(
            "restoring the state of host %d of %d on %d hosts: it knows of no dropped sample, which is exact as long "
            "as the other hosts dropped none either; save_state_global and the checkpoint handler keep all hosts' "
            "states",
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


def _own(values: list[Any], cursor: Mapping[str, Any], share: Share, what: str) -> list[Any]:
    """What belongs to a host's lanes, of values for each lane of the host (or of all) that saved them."""
    host, hosts = cursor["host"]
    if (host, hosts) == (share.host, share.hosts):
        return values
    if hosts == 1:
        share.require_whole_lanes("samples were dropped or held before this state was saved")
        return values[share.host :: share.hosts]
    raise StateError(
        f"the state of host {host} of {hosts} knows what {what} in its own lanes only and cannot be restored on "
        f"{share.hosts} hosts; save with `save_state_global` or the checkpoint handler, which keep all hosts'"
    )


def check_lanes(cursor: Mapping[str, Any], share: Share) -> Cursor:
    """A cursor as it should be, of a run with as many lanes.

    Raises:
        StateError: It is malformed, or has another number of lanes.
    """
    checked = check_cursor(cursor)
    lanes = checked["lanes"]
    if lanes != share.lanes:
        saved = Share(share.host, share.hosts, lanes)
        where = "" if saved.whole_lanes else f", and run it on one of {saved.fitting_hosts} hosts if it packs or groups"
        raise StateError(
            f"the state was saved with lanes={lanes}, this run has lanes={share.lanes}: pass lanes={lanes}, lanes are "
            f"a constant of a run{where}"
        )
    return checked


def check_fingerprint(cursor: Mapping[str, Any], fingerprint: str, manifest: Mapping[str, Any]) -> None:
    """Refuse a cursor of another configuration or of other data.

    Raises:
        FingerprintError: They differ; the message names each differing setting where the cursor has a manifest.
    """
    if cursor.get("fingerprint") == fingerprint:
        return
    saved = cursor.get("manifest")
    lines = _differences(saved, manifest, "") if isinstance(saved, Mapping) else []
    told = "\n".join(f"  {line}" for line in lines) or (
        f"  fingerprint: saved {cursor.get('fingerprint')}, now {fingerprint} (states of save_state_rank hold what "
        f"differs, too)"
    )
    raise FingerprintError(
        f"the saved state belongs to another stream:\n{told}\nRestore with the configuration and data that it was "
        f"saved with. To go on at the same position of the changed stream, pass allow_changes=True"
    )


def _differences(saved: Any, now: Any, path: str) -> list[str]:
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        before, after = cast("Mapping[str, Any]", saved), cast("Mapping[str, Any]", now)
        lines: list[str] = []
        for name in dict.fromkeys([*before, *after]):
            place = f"{path}.{name}" if path else name
            if name not in before:
                lines.append(f"{place}: not there when saved, now {after[name]!r}")
            elif name not in after:
                lines.append(f"{place}: saved {before[name]!r}, now gone")
            else:
                lines += _differences(before[name], after[name], place)
        return lines
    return [] if saved == now else [f"{path}: saved {saved!r}, now {now!r}"]


def check_cursor(cursor: Any) -> Cursor:
    """A cursor as it should be.

    Raises:
        StateError: It is of another version or malformed.
    """
    if not isinstance(cursor, Mapping):
        raise StateError(f"a state is a JSON object, not a {type(cursor).__name__}")
    given = dict(cast("Mapping[str, Any]", cursor))
    if given.get("version") != VERSION:
        raise StateError(f"the state has version {given.get('version')!r}; this release reads version {VERSION}")
    for name in _INTEGERS:
        if not isinstance(given.get(name), int) or isinstance(given[name], bool) or given[name] < 0:
            raise StateError(f"the state's {name!r} is {given.get(name)!r}; a non-negative integer is meant")
    if not isinstance(given.get("ended"), bool):
        raise StateError(f"the state's 'ended' is {given.get('ended')!r}; true or false is meant")
    host = given.get("host")
    if not _integers(host, 2) or not 0 <= cast("list[int]", host)[0] < cast("list[int]", host)[1]:
        raise StateError(f"the state's 'host' is {host!r}; [host, hosts] is meant")
    history = given.get("history")
    if not isinstance(history, list) or not all(_integers(segment, 5) for segment in cast("list[Any]", history)):
        raise StateError("the state's 'history' is malformed; a list of [step, pass, pass step, item, G] is meant")
    for name in ("drops", "held"):
        if not isinstance(given.setdefault(name, ""), str):
            raise StateError(f"the state's {name!r} is {given[name]!r}; a text is meant")
    skipped = given.setdefault("skipped", [])
    if not isinstance(skipped, list) or not all(_integers(entry, 2) for entry in cast("list[Any]", skipped)):
        raise StateError("the state's 'skipped' is malformed; a list of [step, steps] is meant")
    given["host"] = list(cast("list[int]", host))
    return given


def _integers(value: Any, count: int) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    entries = cast("list[Any]", value)
    return len(entries) == count and all(isinstance(entry, int) for entry in entries)


def _held_of(cursor: Mapping[str, Any], lanes: int) -> list[list[int]]:
    """The integers of each lane."""
    values = unpack_integers(cursor["held"])
    found: list[list[int]] = []
    at = 0
    while at < len(values):
        found.append(values[at + 1 : at + 1 + values[at]])
        at += 1 + values[at]
    if len(found) != lanes or at != len(values):
        raise StateError(f"the state holds {len(found)} lanes (or a part of one), but {lanes} are meant")
    return found


def _drops_of(cursor: Mapping[str, Any], lanes: int) -> npt.NDArray[np.int64]:
    if not cursor["drops"]:
        return np.zeros(lanes, np.int64)
    drops = unpack_integers(cursor["drops"])
    if len(drops) != lanes:
        raise StateError(f"the state counts drops of {len(drops)} lanes, but has {lanes}")
    return np.asarray(drops, np.int64)
