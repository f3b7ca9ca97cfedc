# SPDX-License-Identifier: Apache-2.0
"""`energon-grain lint`: checks that everything opens, every index is right, and every sample decodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from energon_grain.cli.run import own_task_encoder
from energon_grain.cli.terminal import (
    Answer,
    DatasetConfig,
    ProgressBar,
    RatioOption,
    SplitConfig,
    TrustModule,
    note,
    own_modules,
)
from energon_grain.cooking.aux_stores import open_aux
from energon_grain.datasets.lowering import compile_dataset
from energon_grain.errors import ConfigError, DatasetNotFoundError, ReadError
from energon_grain.get_datasets import get_val_dataset
from energon_grain.kinds.joins.leaf import JoinedLeafDataset
from energon_grain.metadataset.documents import datasets_of, leaf_maker, load_metadataset, read_document
from energon_grain.metadataset.flat import leaves_of
from energon_grain.metadataset.samples import open_columns
from energon_grain.prepare.lint import LintFinding, LintReport, about_columns, lint_dataset, opened
from energon_grain.prepare.lint_samples import lint_samples
from energon_grain.samplers.split_ratio import parse_ratio
from energon_grain.sources.kinds import Kind, LintAsk, kind_at
from energon_grain.storage.location import METADATASET_ENDINGS, is_file_of, located
from energon_grain.stream.stream import Stream
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.task_encoder import DefaultTaskEncoder
from energon_grain.words import counted

if TYPE_CHECKING:
    from energon_grain.metadataset.documents import Source
    from energon_grain.metadataset.resolve import Leaf
    from energon_grain.prepare.lint import LintProgress
    from energon_grain.task_encoder import TaskEncoder

_LISTED_ALIKE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reading:
    """How split parts are opened, as the options say.

    Attributes:
        path: Path or URL of the dataset or metadataset.
        split_config: Name of the split file.
        dataset_config: Name of the dataset's YAML file.
        split_ratio: How to split tars that are not prepared.
        trusted: Modules whose classes may be imported.
        batch_size: Samples of the first batch of each split part; None: no batch is made.
        task_encoder: The hooks that make it.
    """

    path: str
    split_config: str | None
    dataset_config: str | None
    split_ratio: str | None
    trusted: Collection[str]
    batch_size: int | None
    task_encoder: TaskEncoder | None

    def leaves(self, source: Source, split_part: str) -> list[tuple[Callable[[], object], Leaf]]:
        """The leaves of a split part, and a function for each that opens it as a loader does."""
        maker = leaf_maker(
            task_encoder=DefaultTaskEncoder(),
            training=False,
            split_config=self.split_config,
            dataset_config=self.dataset_config,
            split_ratio=self.split_ratio,
            trusted_modules=tuple(self.trusted),
        )
        tree = load_metadataset(source, maker, split_part=split_part, require_data=False)

        def open_leaf(leaf: Leaf) -> None:
            leaf.check()
            compile_dataset(leaf)

        return [(partial(open_leaf, leaf), leaf) for leaf in leaves_of(tree)]

    def open_part(self, part: str) -> None:
        """Open a split part as a loader does, and make its first batch. Raises EnergonGrainError."""
        for open_leaf, _ in self.leaves(self.path, part):
            open_leaf()
        self.make_batch(part)

    def make_batch(self, part: str) -> None:
        """Make the first batch of a split part, if there is a batch size. Raises EnergonGrainError."""
        if self.batch_size is None:
            return
        dataset = get_val_dataset(
            self.path,
            split_part=part,
            batch_size=self.batch_size,
            task_encoder=self.task_encoder,
            split_config=self.split_config,
            dataset_config=self.dataset_config,
            split_ratio=self.split_ratio,
            trusted_modules=self.trusted,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
        )
        with Stream.of(dataset, num_workers=0) as stream:
            next(iter(stream), None)

    def check_parts(self, parts: Iterable[str], findings: list[LintFinding]) -> None:
        """Open split parts; errors and warnings become findings."""
        for part in parts:
            opened(self.path, findings, partial(self.open_part, part), empty="warning")


def lint(
    path: Annotated[
        str, typer.Argument(help="Folder or URL of a prepared dataset, a JSONL file, or a metadataset (.yaml).")
    ],
    split_parts: Annotated[
        str | None,
        typer.Option(
            "--split-parts", "--split-part", help="Split parts to check, as train,val. Default: all, and all shards."
        ),
    ] = None,
    split_config: SplitConfig = None,
    dataset_config: DatasetConfig = None,
    split_ratio: RatioOption = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Also make the first batch of each split part, with this many samples."),
    ] = None,
    task_encoder: Annotated[
        str | None,
        typer.Option(
            help="Task encoder for --batch-size, as module:Class; it is imported and called without arguments."
        ),
    ] = None,
    parallel: Annotated[int | None, typer.Option(min=1, help="Threads. Default: one per core.")] = None,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Decode pickles, too. A pickle can run any code.")
    ] = False,
    trust_module: TrustModule = None,
    limit: Annotated[int, typer.Option(min=1, help="Most lines of findings to print; --json prints all.")] = 100,
    progress: Annotated[bool, typer.Option(help="Show a progress bar on terminals.")] = True,
) -> Answer:
    """Check a dataset: open it, compare its indices with its tars, decode every sample.

    In Parquet, Arrow and MDS files, every row is decoded. In a JSONL file, each malformed line is reported, as
    x.jsonl:123. In a metadataset, every split is opened with all datasets that it names, and the first sample of each
    shard is decoded. Exit code 1: there are problems.

    Examples:
        energon-grain lint captions
        energon-grain lint captions --batch-size 16 --split-part train
    """
    path = located(path)
    if task_encoder is not None and batch_size is None:
        raise ConfigError("--task-encoder makes the batch of --batch-size: add --batch-size")
    reading = _Reading(
        path=path,
        split_config=split_config,
        dataset_config=dataset_config,
        split_ratio=split_ratio,
        trusted=own_modules(trust_module),
        batch_size=batch_size,
        task_encoder=None if task_encoder is None else own_task_encoder(task_encoder),
    )
    with ProgressBar("Indices", shown=progress) as bar:
        lint_folder = partial(
            lint_dataset,
            allow_pickle=allow_pickle,
            trusted_modules=reading.trusted,
            num_threads=parallel,
            progress=_shown_by(bar),
        )
        if is_file_of(path, METADATASET_ENDINGS):
            report = _lint_metadataset(reading, _names(split_parts), lint_folder)
        elif (kind := kind_at(path)).open is not None:
            ask = LintAsk(
                trusted_modules=tuple(reading.trusted), allow_pickle=allow_pickle, progress=partial(_show, bar)
            )
            report = _lint_rows(reading, kind, split_parts, ask)
        else:
            report = _lint_shards(reading, kind, _names(split_parts), lint_folder)
    failed = any(finding.severity == "error" for finding in report.findings)
    return Answer(document=report.findings, lines=_lines(report, limit), failed=failed)


def _shown_by(bar: ProgressBar) -> Callable[[LintProgress], None]:
    labels = {"index": "Indices", "samples": "Samples"}

    def show(now: LintProgress) -> None:
        problems = f", {counted(now.findings, 'problem')}" if now.findings else ""
        unit = "shards" if now.stage == "index" else "samples"
        bar.advance_to(now.done, now.total, f"{now.done:,}/{now.total:,} {unit}{problems}", labels[now.stage])

    return show


def _lint_rows(reading: _Reading, kind: Kind, split_parts: str | None, ask: LintAsk) -> LintReport:
    """Check data without shards, such as a JSONL file."""
    if split_parts or reading.split_config or reading.dataset_config:
        raise ConfigError(f"{reading.path}: {kind.described} has neither splits nor a configuration to name.")
    report = lint_samples(kind, reading.path, ask) if kind.lint is None else kind.lint(reading.path, ask)
    if reading.batch_size is None and reading.split_ratio is None:
        return report
    findings = list(report.findings)
    reading.check_parts(_parts_of_ratio(reading.split_ratio), findings)
    return LintReport.of(reading.path, findings, shards=report.shards, samples=report.samples)


def _lint_shards(
    reading: _Reading, kind: Kind, parts: Sequence[str] | None, lint_folder: Callable[..., LintReport]
) -> LintReport:
    """Check a dataset of shards, prepared or not."""
    by_ratio = reading.split_ratio is not None and not kind.is_configured
    report = lint_folder(
        reading.path,
        split_parts=None if by_ratio else parts,
        split_config=reading.split_config,
        dataset_config=reading.dataset_config or "dataset.yaml",
        open_part=reading.open_part,
    )
    if kind.is_configured:  # its parts are opened above
        return report
    findings = list(report.findings)
    reading.check_parts(parts or _parts_of_ratio(reading.split_ratio), findings)
    return LintReport.of(report.root, findings, shards=report.shards, samples=report.samples)


def _names(parts: str | None) -> list[str] | None:
    return None if parts is None else [part.strip() for part in parts.split(",")]


def _parts_of_ratio(ratio: str | None) -> list[str]:
    return ["train"] if ratio is None else [name for name, share in parse_ratio(ratio).items() if share]


def _show(bar: ProgressBar, done: int, total: int, found: int, what: str) -> None:
    count = f"{done:,}/{total:,} {what}, " if what else ""
    bar.advance_to(done, total, f"{count}{counted(found, 'problem')}", "Samples")


def _lines(report: LintReport, limit: int) -> list[str]:
    alike: dict[tuple[str, str], list[LintFinding]] = {}
    for finding in report.findings:
        alike.setdefault((finding.severity, finding.what), []).append(finding)
    problems = [line for (severity, _), same in alike.items() if severity != "note" for line in _lines_of(same)]
    notes = [_line(finding) for finding in report.findings if finding.severity == "note"]
    hidden = [f"… and {len(problems) - limit:,} more lines (--limit)"] if len(problems) > limit else []
    return [*problems[:limit], *hidden, *notes, _summary(report)]


def _summary(report: LintReport) -> str:
    counts = Counter(finding.severity for finding in report.findings)
    warnings = f" and {counted(counts['warning'], 'warning')}" if counts["warning"] else ""
    found = counted(counts["error"], "problem") if counts["error"] else "No problems"
    shards = "" if report.shards is None else f" and {counted(report.shards, 'shard')}"
    colour = typer.colors.RED if counts["error"] else typer.colors.GREEN
    return typer.style(f"{found}{warnings} in {counted(report.samples, 'sample')}{shards}.", fg=colour)


def _lines_of(alike: Sequence[LintFinding]) -> list[str]:
    """The first of some findings that differ only in their place: a wrong field map is one mistake in many samples."""
    if len(alike) <= _LISTED_ALIKE:
        return [_line(finding) for finding in alike]
    more = f"  … the same in {counted(len(alike) - _LISTED_ALIKE, 'more place')}, up to {alike[-1].where}"
    return [*map(_line, alike[:_LISTED_ALIKE]), more]


def _line(finding: LintFinding) -> str:
    return str(finding) if finding.severity == "error" else note(str(finding), kind=finding.severity)


_Read: TypeAlias = dict[tuple[str, str | None, str], list[str]]
"""Split parts by path, split configuration and dataset configuration."""


def _lint_metadataset(
    reading: _Reading, splits: Sequence[str] | None, lint_folder: Callable[..., LintReport]
) -> LintReport:
    """Open every leaf of every split as a loader does, and decode the first sample of each of its shards.

    A missing dataset does not end the check.
    """
    path = reading.path
    if reading.split_config or reading.dataset_config:
        raise ConfigError(f"{path} is a metadataset, which names --split-config and --dataset-config of its datasets")
    findings: list[LintFinding] = []
    document = opened(path, findings, partial(read_document, path), raised=(DatasetNotFoundError, ReadError))
    if document is None:
        return LintReport.of(path, findings, shards=0, samples=0)
    read: _Read = {}
    for split in splits or document.splits:
        _open_split(reading, document, split, read, findings)
    samples, shards = _lint_read(read, reading.trusted, lint_folder, findings)
    if shards:
        what = "Only the first sample of each shard was decoded"
        way_out = "`energon-grain lint` of a dataset decodes all samples"
        findings.append(LintFinding(severity="note", where=path, what=what, way_out=way_out))
    return LintReport.of(path, findings, shards=shards, samples=samples)


def _lint_read(
    read: _Read, trusted: Collection[str], lint_folder: Callable[..., LintReport], findings: list[LintFinding]
) -> tuple[int, int]:
    """Check each dataset of the leaves. Returns their number of samples and shards."""
    files = set[str]()
    samples = shards = 0
    for (root, split_config, dataset_config), parts in read.items():
        kind = kind_at(root)
        if kind.shards is None:
            if kind.open is not None and not kind.takes_no_columns and root not in files:
                files.add(root)
                opened(root, findings, lambda root=root: findings.extend(about_columns(root, trusted)))
            continue
        report = lint_folder(
            root,
            split_parts=parts if kind.is_configured else None,  # of tars that are not prepared, all are checked
            split_config=split_config,
            dataset_config=dataset_config,
            first_samples=True,
        )
        samples, shards = samples + report.samples, shards + (report.shards or 0)
        for finding in report.findings:
            where = finding.where if finding.where.startswith(report.root) else f"{report.root}/{finding.where}"
            findings.append(replace(finding, where=where))
    return samples, shards


def _open_split(reading: _Reading, document: Source, split: str, read: _Read, findings: list[LintFinding]) -> None:
    """Open the leaves of a split, add their datasets to `read`, and make the first batch if all of them open."""
    path, joins, before_split = reading.path, 0, len(findings)
    leaves = opened(path, findings, partial(reading.leaves, document, split))
    for open_leaf, leaf in leaves or ():
        before = len(findings)
        opened(str(leaf.place), findings, open_leaf)
        for name, aux in leaf.aux.items():
            opened(str(aux.place), findings, partial(open_aux, {name: aux}, None))
        if not _has_errors(findings[before:]):
            joins += isinstance(leaf, JoinedLeafDataset)
            for each in datasets_of(leaf):
                read.setdefault((each.path, each.split_config, each.dataset_config), []).append(each.split_part)
    if joins == 1:  # with several joins, columns would not say which join they are of
        opened(
            path,
            findings,
            lambda: findings.extend(about_columns(path, reading.trusted, open_columns(path, split_part=split))),
        )
    if not _has_errors(findings[before_split:]):
        opened(path, findings, partial(reading.make_batch, split), empty="warning")


def _has_errors(findings: Iterable[LintFinding]) -> bool:
    return any(finding.severity == "error" for finding in findings)
