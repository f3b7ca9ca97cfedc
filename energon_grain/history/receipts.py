# SPDX-License-Identifier: Apache-2.0
"""Receipts: what a model was trained on until a step, as a JSON object of less than 1 KB.

    version          1: of this format
    library          version of energon-grain
    order            version of the streams (`stream.cursor.ORDER_VERSION`)
    step             steps delivered
    batch            items of all hosts in a step
    seed             seed and seed offset
    configuration    the fingerprint of the run
    settings         root over all settings; each: a digest of each, to name those that differ
    amendments       number of changes of the mixture, and the digest of their log
    datasets         count; root over their roots; each: a digest of the data and of the configuration files of each;
                     removed: number of datasets that the configuration no longer has, if there are any
    root             over all of the above

A dataset's root covers name, size and digest of each of its files, in order, and its configuration files. Roots are
BLAKE2b-128 of canonical JSON. `each` is shortened, and then left out, if there are too many datasets for 1 KB.

A receipt depends on nothing that differs between hosts, and is the same from a running loader and from its state. It
does not cover the program (task encoders, hooks, and files that these read). Of removed datasets, the log of amendments
has the content ids, and their bytes are not covered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import msgspec

from energon_grain._version import __version__
from energon_grain.errors import StateError
from energon_grain.history.digests import DataFiles, canonical, data_root, datasets_of, is_removed, root_of, several
from energon_grain.stream.cursor import ORDER_VERSION, Cursor, saved_manifest
from energon_grain.stream.spec import StreamSpec
from energon_grain.stream.stream import Stream

VERSION = 1
MOST_BYTES = 1000
SHORT = 8
"""Hex digits of digests that only name a difference; the roots prove equality."""
_BESIDES = frozenset({"number", "commit"})
"""Entries of a leaf in the manifest that are no settings."""


class Receipt(dict[str, Any]):
    """A receipt. `str()` is its text: JSON with sorted keys and no spaces, in one line."""

    def __str__(self) -> str:
        return canonical(self)


def receipt_of(stream: Stream, *, allow_missing: bool = False) -> Receipt:
    """The receipt of a stream at its present step. See `StreamLoader.receipt`."""
    spec, cursor = stream.spec, stream.cursor()
    sources = [leaf.leaf.source for leaf in spec.leaves]
    datasets = datasets_of(sources)
    records = [record_of(each, each.kept()) for each in datasets]
    if not allow_missing:
        _require_all(datasets, records)
    fields = datasets_field(records)
    if removed := sum(map(is_removed, sources)):
        fields["removed"] = removed
    return _made(cursor, settings_of(spec.manifest(), spec), amendments_of(stream, cursor), fields)


def _require_all(datasets: Sequence[DataFiles], records: Sequence[Mapping[str, Any]]) -> None:
    """Raise StateError if the digests of a dataset are missing."""
    missing = [each for each, record in zip(datasets, records, strict=True) if record["data"] is None]
    if missing:
        others = " and on each of the others" if len(missing) > 1 else ""
        raise StateError(
            f"{several([each.named for each in missing])}: no digests of the files are stored, so a receipt cannot say "
            f"what they hold; {missing[0].remedy}{others}. To make a receipt without them, pass allow_missing=True "
            f"(--allow-missing)"
        )


def amendments_of(stream: Stream, cursor: Cursor) -> list[Any]:
    """The field `amendments` of the receipt of a stream at a cursor."""
    return _amendments(0 if stream.amendments is None else len(stream.amendments.steps), cursor)


def _amendments(changes: int, cursor: Cursor) -> list[Any]:
    texts: list[str] = cursor.get("amendments") or []
    return [changes, root_of(texts[:1])] if texts else [0, None]


def receipt_of_state(cursor: Cursor, changes: int) -> Receipt:
    """The receipt of a saved state alone: the digests of its data are null.

    Args:
        cursor: A saved state.
        changes: Number of changes of the mixture in it.

    Raises StateError: The state has no manifest.
    """
    manifest = saved_manifest(cursor)
    if manifest is None:
        raise StateError(
            "the state has no manifest, so its settings are unknown (states of get_state leave out a long one; those "
            "of save_state_rank keep it); give the configuration of the run, too"
        )
    fields = {"count": None, "root": None, "forms": ()}
    return _made(cursor, settings_of(manifest), _amendments(changes, cursor), fields)


def _made(cursor: Cursor, settings: Mapping[str, Any], amendments: list[Any], fields: Mapping[str, Any]) -> Receipt:
    fixed = {
        "version": VERSION,
        "library": __version__,
        "order": ORDER_VERSION,
        "step": cursor["step"],
        "batch": cursor["history"][-1][4],
        "seed": [settings["seed"], settings["seed_offset"]],
        "configuration": cursor["fingerprint"],
        "settings": {
            "root": root_of(settings),
            "each": {name: root_of(value)[:SHORT] for name, value in settings.items()},
        },
        "amendments": amendments,
    }
    for each in (*fields["forms"], None):
        datasets = {name: value for name, value in fields.items() if name != "forms"}
        datasets |= {} if each is None else {"each": each}
        receipt = Receipt(fixed, datasets=datasets)
        receipt["root"] = root_of(dict(receipt))
        if each is None or len(str(receipt)) < MOST_BYTES:
            return receipt
    raise AssertionError


def settings_of(manifest: Mapping[str, Any], spec: StreamSpec | None = None) -> dict[str, Any]:
    """The settings of a run by name: those of the manifest, one list for all datasets each.

    With `spec`, also how samples and batches are made, as far as the configuration determines it.
    """
    leaves: Mapping[str, Mapping[str, Any]] = manifest["leaves"]
    found: dict[str, Any] = {**manifest, "names": list(leaves)}
    del found["leaves"]
    names = dict.fromkeys(chain.from_iterable(leaves.values()))
    found |= {name: [leaf.get(name) for leaf in leaves.values()] for name in names if name not in _BESIDES}
    if spec is not None:
        found["types"] = [_made_by(leaf.leaf) for leaf in spec.leaves]
        last = None if spec.batch is None or spec.endless else spec.batch.last
        found["batches"] = [last, spec.limit, spec.steps]
    return found


def _made_by(leaf: Any) -> list[Any]:
    """The sample type, field map and tags of a leaf."""
    kind, fields = leaf.sample_type, leaf.field_map
    named = None if kind is None else f"{kind.__module__}:{kind.__qualname__}"
    return [named, None if fields is None else repr(sorted(fields.fields.items())), repr(leaf.subflavors)]


def record_of(dataset: DataFiles, digests: Mapping[str, Any] | None) -> dict[str, Any]:
    """The roots of a dataset: of its data (None: unknown), and the digests of its configuration files."""
    return {"data": None if digests is None else data_root(digests), **dataset.configuration()}


def datasets_field(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The field `datasets` of a receipt, and the `forms` of its entry `each`, the longest first."""
    whole = all(record["data"] is not None for record in records)
    shortened = [{name: value and value[:SHORT] for name, value in record.items()} for record in records]
    roots = [None if record["data"] is None else root_of(record)[:SHORT] for record in records]
    return {
        "count": len(records),
        "root": root_of([root_of(record) for record in records]) if whole else None,
        "forms": (shortened, roots),
    }


def read_receipt(path: Path) -> Receipt:
    """Read a receipt from a file. Raises StateError if it is damaged, was changed, or is of a newer version."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise StateError(f"{path}: cannot be read as a receipt: {error}") from error
    return checked(found, str(path))


def checked(receipt: Any, where: str = "the receipt") -> Receipt:
    """A receipt whose root is right. Raises StateError if it is damaged, was changed, or is of a newer version."""
    if not isinstance(receipt, Mapping) or not {"version", "root", "datasets", "settings"} <= receipt.keys():
        raise StateError(
            f"{where}: is no receipt; expected the result of `loader.receipt()` or of `energon-grain receipt`"
        )
    known = Receipt(cast("Mapping[str, Any]", receipt))
    if known["version"] != VERSION:
        raise StateError(
            f"{where}: has version {known['version']}, but this release reads {VERSION}; install another one"
        )
    root = root_of({name: value for name, value in known.items() if name != "root"})
    if known["root"] != root:
        raise StateError(
            f"{where}: was changed after it was made: its root is {known['root']}, but its content has {root}; get the "
            f"original"
        )
    return known
