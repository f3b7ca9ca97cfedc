# SPDX-License-Identifier: Apache-2.0
"""Numbers of each lane at each amendment, as a short text; and the amendments of all hosts as one."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from energon_grain.errors import StateError
from energon_grain.stream.state import pack_integers, unpack_integers

_MAX_ROWS = 1 << 26
_MAX_TEXT = 1 << 24


def merged(ordered: Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts of all hosts as those of one: logs, which all hosts have alike, and numbers of each host's lanes."""
    texts = [cursor.get("amendments", [""]) for cursor in ordered]
    logs = {(len(each), *(text for at, text in enumerate(each) if at % 3 == 0)) for each in texts}
    if len(logs) != 1:
        raise StateError(
            f"the hosts' states do not match: the mixture was amended differently on some hosts "
            f"({_said([each[0] for each in texts])}); call `amend` or `reweight` with the same arguments at the same "
            f"step on every host"
        )
    lanes, merging = ordered[0]["lanes"], (None, _merged_ahead, merged_anchors)
    try:
        return [
            texts[0][at] if at % 3 == 0 else merging[at % 3]([each[at] for each in texts], lanes)  # pyright: ignore
            for at in range(len(texts[0]))
        ]
    except ValueError as error:
        raise StateError(f"the hosts' states do not fit together: their 'amendments' are damaged: {error}") from error


def _said(logs: Sequence[str]) -> str:
    """Which hosts have which log, and what of them differs."""
    found: dict[str, list[int]] = {}
    for host, log in enumerate(logs):
        found.setdefault(log, []).append(host)
    return "; ".join(f"hosts {', '.join(map(str, hosts))}: {_last(log)}" for log, hosts in found.items())


def _last(log: str) -> str:
    """The number of amendments of a log, and the last one."""
    if not log:
        return "no amendments"
    try:
        tree, steps, *_ = unpacked_log(log)
        step, _, note = steps[-1]
        weights = tree[1][-1][1]
    except (ValueError, TypeError, LookupError, zlib.error, RecursionError):
        return "damaged amendments"
    said = f" ({note})" if note else ""
    return f"{len(steps)} amendments, the last at step {step}{said}, with the weights {weights} of the outermost blend"


def unpacked_log(text: str) -> Any:
    """The log of a state: a mixture and its steps. Raises ValueError, TypeError or zlib.error if it is damaged."""
    unpacking = zlib.decompressobj()
    said = unpacking.decompress(base64.b64decode(text, validate=True), _MAX_TEXT)
    if not unpacking.eof:
        raise ValueError("it is cut short")
    return json.loads(said)


def _merged_ahead(texts: Sequence[str], lanes: int) -> str:
    """How far each lane had read beyond its items at each amendment."""
    hosts = len(texts)
    own = [unpack_lane_rows(text, lanes // hosts) for text in texts]
    ahead = np.zeros((max(map(len, own)), lanes), np.int64)
    for host, rows in enumerate(own):
        ahead[:, host::hosts] = rows if len(rows) else 0
    return pack_lane_rows(ahead)


def merged_anchors(texts: Sequence[str], lanes: int) -> str:
    """The anchors, which hosts know in their own lanes if any samples were dropped or held there; else in all lanes."""
    hosts, anchors = len(texts), [unpack_anchors(text) for text in texts]
    if all(rows.shape[1] == lanes for rows in anchors):
        return texts[0]
    found = np.zeros((len(anchors[0]), lanes), np.int64)
    for host, rows in enumerate(anchors):
        found[:, host::hosts] = rows[:, host::hosts] if rows.shape[1] == lanes else rows
    return pack_anchors(found)


def pack_anchors(rows: npt.NDArray[np.int64]) -> str:
    """Numbers of each lane, (n, lanes), as a text that says how many lanes there are."""
    return f"{rows.shape[1]}:{pack_lane_rows(rows)}"


def unpack_anchors(text: str) -> npt.NDArray[np.int64]:
    """The rows of `pack_anchors`. Raises ValueError if the text is damaged."""
    lanes, _, packed = text.partition(":")
    if not lanes.isdecimal() or not 0 < int(lanes) <= _MAX_ROWS:
        raise ValueError("its anchor has no number of lanes")
    return unpack_lane_rows(packed, int(lanes))


def pack_lane_rows(rows: Sequence[npt.NDArray[np.int64]] | npt.NDArray[np.int64]) -> str:
    """Numbers of each lane, (lanes,) a row, as a text: differences of rows, deflated; empty where all are 0."""
    found = np.array([*rows], np.int64)
    if not found.any():
        return ""
    change = np.diff(found, axis=0, prepend=0)
    least = change.min(axis=1, keepdims=True)
    numbers = np.concatenate([np.where(least < 0, -2 * least - 1, 2 * least), change - least], axis=1)
    packed = base64.b64decode(pack_integers(numbers.reshape(-1).tolist()))
    return base64.b64encode(zlib.compress(packed, 9)).decode()


def unpack_lane_rows(text: str, lanes: int) -> npt.NDArray[np.int64]:
    """The rows, (n, lanes). Raises ValueError if the text is damaged, or of another number of lanes."""
    if not text:
        return np.zeros((0, lanes), np.int64)
    try:
        unpacking = zlib.decompressobj()
        packed = unpacking.decompress(base64.b64decode(text, validate=True), _MAX_ROWS)
        if not unpacking.eof:
            raise ValueError("it is cut short")
        numbers = np.array(unpack_integers(base64.b64encode(packed).decode()), np.int64).reshape(-1, lanes + 1)
    except (zlib.error, StateError) as error:
        raise ValueError(f"{error}") from error
    least = np.where(numbers[:, :1] % 2, -(numbers[:, :1] + 1) // 2, numbers[:, :1] // 2)
    return np.cumsum(numbers[:, 1:] + least, axis=0)
