# SPDX-License-Identifier: Apache-2.0
"""Checks data and configuration against a receipt, and names the files and settings that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from energon_grain._version import __version__
from energon_grain.errors import EnergonGrainError, StateError, public
from energon_grain.history.digests import DataFiles, FileDigest, data_root, datasets_of, several
from energon_grain.history.receipts import (
    SHORT,
    amendments_of,
    checked,
    datasets_field,
    record_of,
    root_of,
    settings_of,
)
from energon_grain.stream.cursor import ORDER_VERSION
from energon_grain.stream.stream import Stream

_OF_CONFIGURATIONS = ("types", "batches")
"""Settings that the receipt of a state alone does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """The result of checking data, and possibly a configuration, against a receipt.

    Attributes:
        differences: One line for each dataset, file or setting that differs. Empty: all is equal.
        notes: Remarks that are no differences.
        configuration: Whether the configuration was compared.
        data: Whether the receipt has digests of the data, which were compared.
        datasets: Number of datasets.
        files: Number of files that were read.
        size_bytes: Their size.
    """

    differences: tuple[str, ...]
    notes: tuple[str, ...]
    configuration: bool
    data: bool
    datasets: int
    files: int
    size_bytes: int


@public
def verify_receipt(
    receipt: Mapping[str, Any],
    loader: Any,
    *,
    restored: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Verified:
    """Check the data and the configuration of a loader against a receipt. All files of its datasets are read.

    Args:
        receipt: The result of `loader.receipt()`, as such or read from JSON.
        loader: A loader, or its `stream`. The loader stays where it is.
        restored: Whether the loader is at the step of the receipt, by a restored state. Then step and changes of the
            mixture are compared, too.
        progress: Called with the number of bytes just read.

    Raises:
        StateError: The receipt is damaged, was changed, or is of another version.
        ReadError, OSError: A file cannot be read.
    """
    known = checked(receipt)
    stream: Stream = getattr(loader, "stream", loader)
    spec = stream.spec
    found = Differences(known)
    found.compare_run(stream, restored=restored)
    found.compare_settings(settings_of(spec.manifest(), spec))
    return found.compare_data(datasets_of(leaf.leaf.source for leaf in spec.leaves), progress, configuration=True)


def verify_files(
    receipt: Mapping[str, Any], datasets: Sequence[DataFiles], progress: Callable[[int], None] | None = None
) -> Verified:
    """Check the data of all datasets of a run, in the order of the run, without its configuration."""
    return Differences(checked(receipt)).compare_data(datasets, progress, configuration=False)


class Differences:
    """Collects the differences from a receipt."""

    def __init__(self, receipt: Mapping[str, Any]) -> None:
        self._receipt = receipt
        self._found: list[str] = []
        self._notes: list[str] = []
        if receipt["library"] != __version__:
            self._notes.append(f"made by energon-grain {receipt['library']}; this is {__version__}")
        if receipt["order"] != ORDER_VERSION:
            self._found.append(f"order version: {receipt['order']} in the receipt, now {ORDER_VERSION}")

    def compare_run(self, stream: Stream, *, restored: bool) -> None:
        """Compare the batch size, and with a restored state the step and the changes of the mixture."""
        changes, log = self._receipt["amendments"]
        if changes and not restored:
            raise StateError(
                f"the mixture of this run was changed {changes} times, which only its states describe: restore the "
                f"state of the receipt first (--state)"
            )
        cursor = stream.cursor()
        self._compare("seed", list(stream.spec.written_seed))
        self._compare("batch", cursor["history"][-1][4])
        if restored:
            self._compare("step", cursor["step"])
            if amendments_of(stream, cursor) != [changes, log]:
                self._found.append(f"amendments: {changes} in the receipt, whose log differs from that of the state")

    def _compare(self, name: str, now: Any) -> None:
        if self._receipt[name] != now:
            self._found.append(f"{name}: {self._receipt[name]} in the receipt, now {now}")

    def compare_settings(self, settings: Mapping[str, Any]) -> None:
        """Compare the digest of each setting."""
        if root_of(settings) == self._receipt["settings"]["root"]:
            return
        saved: Mapping[str, str] = self._receipt["settings"]["each"]
        without = {"seed", "seed_offset", *(_OF_CONFIGURATIONS if "types" not in saved else ())}
        for name in (name for name in dict.fromkeys((*saved, *settings)) if name not in without):
            now = root_of(settings[name])[:SHORT] if name in settings else None
            if now != saved.get(name):
                self._found.append(f"setting {name!r}: differs from the receipt; now {_shown(settings.get(name))}")

    def compare_data(
        self, datasets: Sequence[DataFiles], progress: Callable[[int], None] | None, *, configuration: bool
    ) -> Verified:
        """Read all files of all datasets, in order, and compare them."""
        there: list[FileDigest] = []
        if self._has_data(len(datasets)):
            now = [each.now(progress or (lambda _: None)) for each in datasets]
            self._compare_all(datasets, now)
            there = [file for each in now for file in each.values() if file is not None]
        return Verified(
            differences=tuple(self._found),
            notes=tuple(self._notes),
            configuration=configuration,
            data=bool(there),
            datasets=len(datasets),
            files=len(there),
            size_bytes=sum(file.size_bytes for file in there),
        )

    def _has_data(self, count: int) -> bool:
        """Whether the receipt has digests of the data of this number of datasets."""
        expected = self._receipt["datasets"]
        if removed := expected.get("removed"):
            self._notes.append(f"the bytes of {removed} datasets that were removed from the run are not covered")
        if expected["root"] is None:
            self._notes.append("the receipt lacks digests of the data, so the data were not compared")
        elif count != expected["count"]:
            self._found.append(f"datasets: {expected['count']} in the receipt, now {count}")
        return expected["root"] is not None and count == expected["count"]

    def _compare_all(self, datasets: Sequence[DataFiles], now: Sequence[Mapping[str, FileDigest | None]]) -> None:
        expected = self._receipt["datasets"]
        whole = [{name: file for name, file in each.items() if file is not None} for each in now]
        records = [record_of(each, files) for each, files in zip(datasets, whole, strict=True)]
        fields = datasets_field(records)
        if fields["root"] == expected["root"]:
            return
        named = len(self._found)
        shortened, roots = fields["forms"]
        saved = expected.get("each") or [None] * len(records)
        for number, dataset in enumerate(datasets):
            if saved[number] not in (shortened[number], roots[number]):
                self._found += _named(dataset, now[number], saved[number], shortened[number])
        if len(self._found) == named:
            self._found.append("the data or the configuration files of a dataset differ from the receipt")


def _named(
    dataset: DataFiles,
    now: Mapping[str, FileDigest | None],
    saved: Mapping[str, Any] | str | None,
    found: Mapping[str, Any],
) -> list[str]:
    """Lines about a dataset that may differ; `saved` is its entry in the receipt, `found` what it would be now."""
    lines: list[str] = []
    if isinstance(saved, Mapping):
        names = [name for name in dict.fromkeys((*saved, *found)) if name != "data"]
        lines = [f"{dataset.named}: {name} differs" for name in names if saved.get(name) != found.get(name)]
        if saved["data"] == found["data"]:
            return lines
    files = _differing_files(dataset, now, saved)
    if files is None and saved is None:
        return lines  # nothing is known of this dataset
    return [*lines, f"{dataset.named}: {files or _unnamed(dataset)}"]


def _unnamed(dataset: DataFiles) -> str:
    return (
        "the data or its configuration files differ; which files cannot be said, because the digests stored with it "
        "are missing, or are not those of the receipt"
    )


def _differing_files(
    dataset: DataFiles, now: Mapping[str, FileDigest | None], saved: Mapping[str, Any] | str | None
) -> str | None:
    """The files that differ from the stored digests, if these are of the receipt; None if they name none."""
    try:
        stored = next((each for each in dataset.stored() if _is_of(dataset, each, saved)), {})
    except (EnergonGrainError, OSError):
        return None
    wrong = [name for name in dict.fromkeys((*stored, *now)) if stored.get(name) != now.get(name)]
    if not stored or not wrong:
        return None
    return f"{several(wrong)} {'differs or is missing' if len(wrong) == 1 else 'differ or are missing'}"


def _is_of(dataset: DataFiles, stored: Mapping[str, FileDigest], saved: Mapping[str, Any] | str | None) -> bool:
    """Whether stored digests are those of an entry of a receipt, as far as it says."""
    if isinstance(saved, Mapping):
        return data_root(stored)[:SHORT] == saved["data"]
    return saved is None or root_of(record_of(dataset, stored))[:SHORT] == saved


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
