# SPDX-License-Identifier: Apache-2.0
"""The result of `blame`: the unusual steps of a run, and the samples, shards and datasets that explain them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from energon_grain.atomic_files import atomic_write_bytes
from energon_grain.words import counted, table

SURE = 0.05
"""A suspect is sure if fewer than this many are expected to score as high by chance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spike:
    """A step with an unusual loss.

    Attributes:
        step: Its number in the losses.
        loss: Its loss.
        residual: The distance from the trend, in standard deviations of the noise there; infinite: no finite loss.
    """

    step: int
    loss: float
    residual: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A sample, shard or dataset that may be responsible.

    Attributes:
        kind: One of these.
        dataset: Folder of the dataset.
        name: Name of the dataset in the run, as `exclude` of amendments takes it.
        shard: Shard, relative to the dataset; "": a dataset.
        key: Key of the sample; "": a shard or dataset.
        index: Index of the sample in its leaf; -1: a shard or dataset.
        leaf: Number of the leaf.
        uses: Number of times that the losses cover its samples; about that many if not all steps were counted.
        effect: Mean residual of a use of the sample. Of a shard or dataset: how much one more of its samples in a step
            raises the loss. In standard deviations of the noise.
        chance: How many samples (or shards, or datasets) of the run are expected to score as high by chance, at most.
            See `history.chance`.
        steps: Steps of the loader in which a sample was used, and whose loss is high, in the order of steps.
        explains: Share of the spikes that are in these steps.
        tied: Number of samples with the same score, itself included: nothing in the losses tells them apart.
    """

    kind: Literal["sample", "shard", "dataset"]
    dataset: str
    name: str
    shard: str = ""
    key: str = ""
    index: int = -1
    leaf: int = 0
    uses: int
    effect: float
    chance: float
    steps: tuple[int, ...] = ()
    explains: float = 0.0
    tied: int = 1

    @property
    def sure(self) -> bool:
        """Whether chance hardly explains it."""
        return self.chance < SURE


@dataclass(frozen=True, kw_only=True, slots=True)
class Blame:
    """The explanation of the unusual losses of a run.

    Attributes:
        steps: Number of losses.
        spikes: The steps with the highest residuals, at most 100, in the order of steps.
        samples: The samples that explain most, first.
        shards: The same of shards.
        datasets: The same of datasets, all of them.
        notes: Limits of the answer.
        replayed: Whether steps were made again to know their samples.
    """

    steps: int
    spikes: list[Spike]
    samples: list[Suspect]
    shards: list[Suspect]
    datasets: list[Suspect]
    notes: list[str] = field(default_factory=list[str])
    replayed: bool = False

    @property
    def sure(self) -> list[Suspect]:
        """The samples that are hardly a result of chance."""
        return [suspect for suspect in self.samples if suspect.sure]

    def lines(self) -> list[str]:
        """The answer as text."""
        found = [f"Losses of {counted(self.steps, 'step')}, {counted(len(self.spikes), 'spike')}.", *self.notes]
        if self.spikes:
            highest = sorted(self.spikes, key=lambda spike: -spike.residual)[:5]
            rows = [(f"step {each.step:,}", f"loss {each.loss:.6g}", f"{each.residual:+.1f} sd") for each in highest]
            found += ["", "Highest above the trend:", *table(rows, "<<>")]
        for title, suspects in (("Samples", self.samples), ("Shards", self.shards), ("Datasets", self.datasets)):
            found += ["", *_section(title, suspects)] if suspects else []
        return found

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def save_suspects(self, file: Path, *, only_sure: bool = False) -> None:
        """Write the samples in the form that exclusions take.

        Args:
            file: The file, which is replaced. `.json` holds {dataset: [key, …]}, `.csv` has the columns dataset and
                key, and any other file has a dataset, a tab and a key in each line.
            only_sure: Leave out samples that chance may explain.
        """
        chosen = self.sure if only_sure else self.samples
        if file.suffix == ".json":
            found: dict[str, list[str]] = {}
            for suspect in chosen:
                found.setdefault(suspect.name, []).append(suspect.key)
            text = json.dumps(found, indent=2)
        elif file.suffix == ".csv":
            written = io.StringIO()
            rows = csv.writer(written)
            rows.writerows([("dataset", "key"), *((suspect.name, suspect.key) for suspect in chosen)])
            text = written.getvalue()
        else:
            text = "".join(f"{suspect.name}\t{suspect.key}\n" for suspect in chosen)
        atomic_write_bytes(file, text.encode())


def _section(title: str, suspects: Sequence[Suspect]) -> list[str]:
    rows = [(title, "by chance", "effect", "uses", "spikes", "steps")]
    for each in suspects:
        steps = ", ".join(f"{step:,}" for step in each.steps[:4]) + (", …" if len(each.steps) > 4 else "")
        rows.append(
            (
                "/".join(filter(None, (each.dataset, each.shard, each.key))),
                chance_text(each.chance) + ("" if not each.sure else " *"),
                f"{each.effect:+.2g} sd",
                f"{each.uses:,}",
                f"{each.explains:.0%}" if each.kind == "sample" else "",
                steps,
            )
        )
    found = table(rows, "<><>><")
    if suspects[0].tied > 1:
        found.append(
            f"The first {suspects[0].tied:,} samples have the same score: they were used in the same step. Losses of "
            f"single samples, or later passes, tell them apart."
        )
    return found


def chance_text(value: float) -> str:
    """A chance with two digits."""
    return f"{value:.2g}" if value >= 1e-3 else f"{value:.0e}"
