"""Turn the measurements of a row into medians, ratios per pair, verdicts and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.contender import Row, Target


@dataclass(kw_only=True, slots=True)
class RowResult:
    """The measurements of a row: for each contender one answer per round, in the same order."""

    row: Row
    answers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def values(self, contender: str, metric: str) -> list[float]:
        """Return the measured number of each round."""
        return [float(answer[metric]) for answer in self.answers.get(contender, []) if metric in answer]

    def opponent(self, target: Target) -> str | None:
        """Return the contender that a target is compared with: the one of its family with the best median."""
        names = [name for name in self.answers if target.against in (name, name.partition(":")[0])]
        names = [name for name in names if self.values(name, target.metric)]
        best = max if target.sense == "at least" else min
        return best(names, key=lambda name: median(self.values(name, target.metric))) if names else None

    def verdict(self, target: Target) -> float | None:
        """Return the measured value of a target: the median over pairs of `ours / other`, or the median of ours."""
        ours = self.values("ours", target.metric)
        if not ours:
            return None
        if target.against is None:
            return median(ours)
        other = self.opponent(target)
        if other is None:
            return None
        return median(mine / theirs for mine, theirs in zip(ours, self.values(other, target.metric), strict=False))


def summary(results: Sequence[RowResult]) -> list[str]:
    """Return the table of targets."""
    lines = ["| what | target | measured | |", "|---|---|---|---|"]
    for result in results:
        for target in result.row.targets:
            value = result.verdict(target)
            other = result.opponent(target) if target.against else None
            against = f" x {target.against}" if target.against else ""
            if other not in (None, target.against):
                against += f" ({str(other).partition(':')[2].strip()})"
            measured = "not measured" if value is None else _number(value)
            mark = "" if value is None else "met" if target.met(value) else "**missed**"
            what = f"{result.row.name}: {_METRICS[target.metric]}"
            lines.append(f"| {what} | {target.sense} {target.bound:g}{against} | {measured} | {mark} |")
    return lines


def details(result: RowResult) -> list[str]:
    """Return the table of one row's contenders, with medians and ranges."""
    row = result.row
    lines = [f"### {row.name}", "", f"{row.title}.", ""]
    heads = [_METRICS[metric] for metric in row.metrics]
    lines += [
        f"| program | {' | '.join(heads)} | ours / it | range of {heads[0]} | rounds | others' cores |",
        "|---" * (len(heads) + 5) + "|",
    ]
    first = row.metrics[0]
    for contender in row.contenders:
        name = contender.name
        if name not in result.answers:
            note = result.failures.get(name, "not installed")
            lines.append(f"| {name} | {note.splitlines()[-1] if note else ''}" + " |" * (len(heads) + 4))
            continue
        medians = [_cell(result.values(name, metric)) for metric in row.metrics]
        values, ours = result.values(name, first), result.values("ours", first)
        pairs = [mine / theirs for mine, theirs in zip(ours, values, strict=False) if theirs]
        ratio = f"{_number(median(pairs))} x" if pairs and name != "ours" else ""
        spread = f"{_number(min(values))} – {_number(max(values))}"
        other = median(result.values(name, "other_cores"))
        lines.append(f"| {name} | {' | '.join(medians)} | {ratio} | {spread} | {len(values)} | {other:.2f} |")
    return [*lines, ""]


def page(results: Sequence[RowResult], machine: Sequence[str], settings: Mapping[str, object]) -> str:
    """Return the text of RESULTS.md."""
    lines = ["# Results", "", "Written by `make bench`. [README.md](README.md) explains the figures.", ""]
    lines += [f"* {line}" for line in machine]
    lines += [f"* {', '.join(f'{name} {value}' for name, value in settings.items())}", "", "## Targets", ""]
    lines += [*summary(results), "", "## Rows", ""]
    for result in results:
        lines += details(result)
    return "\n".join(lines)


_METRICS = {
    "samples_per_s": "samples/s",
    "samples_per_cpu_s_of_all": "samples per CPU second",
    "seconds": "seconds",
    "of_ideal": "of the ideal",
    "wait_p99_ms": "99th percentile of waits, ms",
    "index_mb": "index, MB",
    "first_batch_s": "first batch, s",
    "memory_mb": "memory above imports, MiB",
    "open_files": "open files",
    "import_s": "import, s",
    "state_bytes": "state, bytes",
    "of_unchanged": "rate / unchanged",
    "amend_s": "change, s",
    "reweight_s": "change, s",
    "of_run": "changes / run",
    "saved_bytes": "saved state, bytes",
    "restored_s": "restore, s",
    "dropped": "dropped",
    "repeated": "repeated",
    "save_s": "save, s",
    "restore_s": "restore to first batch, s",
    "driver_ms": "CPU time of the loader's process per chunk, ms",
    "query_s": "a query, s",
    "seen_s": "all uses counted, s",
    "draws_s": "a million draws, s",
    "efficiency": "filled",
    "requests": "requests",
    "fetched_mb": "fetched, MB",
    "times_data": "fetched / data",
    "times_needed": "fetched / delivered",
    "run_s": "run, s",
    "ahead_mb": "fetched and not used, MB",
    "us_per_sample": "µs per sample",
    "decoded": "decoded",
    "pss_mb": "PSS of all processes, MiB",
    "handed_on_ms": "to hand on a batch, ms",
}


def _cell(values: Sequence[float]) -> str:
    return _number(median(values)) if values else "–"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"
