"""What a check for a migration reports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from energon_grain.formats.data_folder import DataFolder
from energon_grain.metadataset.place import Place

Severity = Literal["error", "differs", "better", "note"]
"""`error`: refused here. `differs`: works, otherwise than in Energon. `better`: a defect or limit of Energon that ends
here. `note`: good to know."""

_SHOWN_ALIKE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing in the data or its configuration that matters for a move from Energon.

    Attributes:
        severity: See `Severity`.
        where: The file, and the place in it: `coco/.nv-meta/split.yaml: $.exclude`.
        what: What was found there.
        energon: How Energon behaves; "" where it does the same as we, or where that cannot be told.
        here: How energon-grain behaves.
        advice: What to do; "" where nothing is to be done.
    """

    severity: Severity
    where: str
    what: str
    energon: str = ""
    here: str
    advice: str = ""


def refusal(where: str | os.PathLike[str] | Place, error: Exception, *, energon: str = "", advice: str = "") -> Finding:
    """Make the finding for something that raised: opening it in a program will raise the same.

    Args:
        where: What was read.
        error: The error. Its message says what is wrong and mostly also the way out.
        energon: As in `Finding`.
        advice: As in `Finding`.
    """
    shown = str(where)
    what = str(error).removeprefix(f"{shown}: ")
    return Finding(severity="error", where=shown, what=what, energon=energon, here="refused", advice=advice)


def in_store(finding: Finding, folder: DataFolder) -> Finding:
    """Let a finding name a dataset in an object store by its URL, not by its mirror."""
    if not folder.is_remote:
        return finding
    texts = {name: getattr(finding, name) for name in ("where", "what", "here", "advice")}
    return replace(finding, **{name: text.replace(str(folder.local), folder.location) for name, text in texts.items()})


def merge_alike(findings: Iterable[Finding]) -> list[Finding]:
    """Make one finding of those that differ in `where` alone: the first, which names a few of the others."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        places.setdefault(replace(finding, where=""), []).append(finding.where)
    merged: list[Finding] = []
    for finding, where in places.items():
        others = where[1:]
        listed = ", ".join(others[:_SHOWN_ALIKE]) + (", …" if len(others) > _SHOWN_ALIKE else "")
        more = f" The same at {len(others)} more: {listed}." if others else ""
        merged.append(replace(finding, where=where[0], what=finding.what + more))
    return merged
