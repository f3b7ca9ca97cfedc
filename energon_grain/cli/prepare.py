"""`energon-grain prepare`: index and split a folder of tars, asking for what the flags leave open."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from energon_grain.cli.own_modules import own_sample_type
from energon_grain.cli.progress_bar import progress_bar
from energon_grain.cli.sizes import counted, format_bytes
from energon_grain.errors import ConfigError, DatasetNotFoundError, RefusedError
from energon_grain.formats.file_ending import METADATASET_ENDINGS, is_file_of
from energon_grain.storage.location import is_url, located, no_such_path

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from energon_grain.prepare.dataset_definition import DatasetDefinition
    from energon_grain.prepare.preparation import PrepareReport
    from energon_grain.prepare.scan import ScannedDataset


def prepare_jsonl_file(path: str, *, progress: bool) -> None:
    """Index a file and say how many samples it has."""
    from energon_grain.prepare.preparation import prepare_jsonl

    with progress_bar("Indexing", shown=progress) as bar:
        report = prepare_jsonl(
            path, progress=lambda done, total, samples: bar.advance_to(done, total, f"{samples:,} samples")
        )
    typer.echo(f"Found {counted(report.samples, 'sample')}.")
    typer.echo(
        f"Prepared {report.path}: {counted(report.samples, 'sample')}, {format_bytes(report.size_bytes)}, in {report.elapsed_s:.2f} s."
    )
    typer.echo(f"  index: {report.index}")


def prepare_metadataset_file(path: str, *, progress: bool) -> None:
    """Index the joins of a metadataset and say what was done."""
    from energon_grain.cli.progress_bar import progress_bar
    from energon_grain.cli.sizes import counted
    from energon_grain.metadataset.documents import prepare_metadataset

    with progress_bar("Joining", shown=progress) as bar:
        report = prepare_metadataset(path, progress=bar.show_join)
    if not report.joins:
        typer.echo(f"{path}: has no joins, there is nothing to prepare.")
    for join in report.joins:
        done = "joined" if join.built else "up to date"
        typer.echo(f"{', '.join(join.places)}: {counted(join.rows, 'row')} {done}, in {join.folder.name}")
        if join.skipped:
            typer.echo(f"  without a row: {counted(join.skipped, 'sample')} of the first dataset")
        for dataset, missing in join.missing.items():
            if missing:
                typer.echo(f"  without a sample of {dataset}: {counted(missing, 'row')}")
    for name in report.removed:
        typer.echo(f"  removed the index {name}, which no join needs any more")
    for note in report.notes:
        typer.secho(f"  note: {note}", fg=typer.colors.YELLOW)
    typer.echo(f"Prepared {path} in {report.elapsed_s:.2f} s.")


class Records(StrEnum):
    """How the records of ArrayRecord files become parts."""

    MSGPACK = "msgpack"
    TF_EXAMPLE = "tf_example"
    RAW = "raw"


class Runner(StrEnum):
    """What scans the shards."""

    PROCESSES = "processes"
    RAY = "ray"


def prepare(
    path: Annotated[
        str, typer.Argument(help="Folder with the shards, a JSONL file, both also by URL, or a metadataset with joins.")
    ],
    records: Annotated[
        Records | None, typer.Option(help="The shards are ArrayRecord files, with records in this encoding.")
    ] = None,
    split_ratio: Annotated[
        str | None,
        typer.Option(help="Ratio of train, val and test, as 8,1,1, or of named parts, as train=9,heldout=1."),
    ] = None,
    split_parts: Annotated[
        list[str] | None,
        typer.Option(
            help="Shards of a split part, instead of a ratio: NAME:glob:PATTERN, NAME:re:REGEX (found anywhere), or "
            "NAME:PATTERN (braces, then a regular expression from the beginning, as in Energon). Repeatable."
        ),
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Leave out shards in whose relative path this regular expression is found.")
    ] = None,
    shuffle_tars: Annotated[bool, typer.Option("--shuffle-tars", help="Shuffle the shards before splitting.")] = False,
    sample_type: Annotated[
        str | None, typer.Option(help="Sample type, such as CaptioningSample, or package.module:Class.")
    ] = None,
    field_map: Annotated[
        str | None, typer.Option(help='Part of each field, as JSON: \'{"image": "jpg", "caption": "txt"}\'.')
    ] = None,
    crude: Annotated[bool, typer.Option("--crude", help="Samples are plain dicts, cooked by the program.")] = False,
    skip_dataset_yaml: Annotated[
        bool, typer.Option("--skip-dataset-yaml", help="Do not write (or ask about) dataset.yaml.")
    ] = False,
    dataset_yaml_name: Annotated[str, typer.Option(help="Name of that file in .nv-meta.")] = "dataset.yaml",
    force_overwrite: Annotated[
        bool, typer.Option("--force-overwrite", help="Prepare again without asking what is prepared already.")
    ] = False,
    tar_index_only: Annotated[
        bool, typer.Option("--tar-index-only", help="Only write the indices of a prepared dataset anew.")
    ] = False,
    fix_duplicates: Annotated[
        bool,
        typer.Option(
            "--fix-duplicates", help="Where tars have a key in common, put their paths before members' names."
        ),
    ] = False,
    sqlite: Annotated[
        bool, typer.Option(help="Write index.sqlite, which Energon's joins and auxiliary data need.")
    ] = True,
    num_workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes at most; 0 for none. Default: one for each core. With Ray: shards handed over at a time.",
        ),
    ] = None,
    runner: Annotated[
        Runner, typer.Option(help="Scan in processes of this machine, or as tasks of a Ray cluster that is running.")
    ] = Runner.PROCESSES,
    ray_address: Annotated[
        str | None, typer.Option(help="That cluster, as HOST:PORT. Default: the one that Ray finds (auto).")
    ] = None,
    non_interactive: Annotated[bool, typer.Option("--non-interactive", help="Never ask.")] = False,
    progress: Annotated[bool, typer.Option(help="Show a progress bar, on terminals.")] = True,
) -> None:
    """Index and split the tar files below PATH, so that they are a dataset. Of a metadataset file, index its joins.

    With --records, or where it was given before, the shards are the *.array_record files instead.

    A JSONL file is indexed and needs no more: it has neither splits nor sample types.

    Asks for the split and the sample type where the flags leave them open. The dataset keeps its old state until all is
    written; after a kill, the same command goes on where it was.
    """
    location = located(path)
    is_jsonl = is_file_of(location, ".jsonl")
    if is_jsonl or is_file_of(location, METADATASET_ENDINGS):
        changes = split_ratio or split_parts or exclude or shuffle_tars or sample_type or field_map or crude
        if changes or records or tar_index_only or fix_duplicates or runner is not Runner.PROCESSES or ray_address:
            lines = "a JSONL file, which is only indexed"
            kind = lines if is_jsonl else "a metadataset, of which only joins are prepared"
            raise ConfigError(f"{path}: {kind}: give it no options.")
        if is_jsonl:
            prepare_jsonl_file(location, progress=progress)
            return

        prepare_metadataset_file(location, progress=progress)
        return
    _check_kind(location)
    if skip_dataset_yaml and (sample_type or field_map or crude):
        raise ConfigError("--skip-dataset-yaml contradicts --sample-type, --field-map and --crude.")
    if tar_index_only and (sample_type or field_map or crude or split_ratio or split_parts or shuffle_tars or exclude):
        raise ConfigError(
            "--tar-index-only keeps shards, splits and sample types: give no option that would change them."
        )

    from energon_grain.cli.progress_bar import progress_bar
    from energon_grain.formats.array_record import read_records_file
    from energon_grain.formats.nv_meta import RECORD_SUFFIX
    from energon_grain.prepare.listing import TAR_SUFFIX, find_shards, parse_ratio, parse_split_parts
    from energon_grain.prepare.preparation import open_to_prepare, prepare_dataset

    if split_ratio and split_parts:
        raise ConfigError("give --split-ratio or --split-parts, not both.")
    own_sample_type(sample_type)
    patterns = parse_split_parts(split_parts) if split_parts else None
    ratio = parse_ratio(split_ratio) if split_ratio else None
    fields = _parse_field_map(field_map) if field_map else None
    encoding = None if records is None else records.value
    shards = None
    if not tar_index_only:
        dataset = open_to_prepare(location)
        found = encoding or read_records_file(dataset.local)
        shards = find_shards(location, exclude=exclude, suffix=RECORD_SUFFIX if found else TAR_SUFFIX)
        kind = "ArrayRecord file" if found else "tar file"
        typer.echo(f"Found {counted(len(shards), kind)}, {_first_and_last(shards)}.")
        if not force_overwrite and not non_interactive:
            from energon_grain.cli.prepare_wizard import ask_overwrite

            with _answers():
                force_overwrite = ask_overwrite(dataset.local)
        if ratio is None and patterns is None:
            if non_interactive:
                raise ConfigError("--non-interactive needs --split-ratio (such as 8,1,1) or --split-parts.")
            from energon_grain.cli.prepare_wizard import ask_split_ratio

            with _answers():
                ratio = ask_split_ratio(len(shards))
    asks = not (non_interactive or tar_index_only or skip_dataset_yaml or crude or fields is not None)
    asks = asks and sample_type != "CrudeWebdataset"
    with _executor(runner, ray_address) as executor, progress_bar("Scanning", shown=progress) as bar, _answers():

        def choose(scanned: ScannedDataset) -> DatasetDefinition | None:
            from energon_grain.cli.prepare_wizard import ask_definition

            bar.stop()
            return ask_definition(scanned, sample_type)

        report = prepare_dataset(
            location,
            shards=shards,
            records=encoding,
            split_ratio=ratio,
            split_patterns=patterns,
            shuffle_tars=shuffle_tars,
            sample_type=None if asks else sample_type,
            field_map=fields,
            crude=crude,
            choose_definition=choose if asks else None,
            dataset_yaml_name=dataset_yaml_name,
            force_overwrite=force_overwrite,
            tar_index_only=tar_index_only,
            fix_duplicates=fix_duplicates,
            num_workers=num_workers,
            sqlite=sqlite,
            progress=bar.show_prepare,
            executor=executor,
        )
    _print_report(report, wants_yaml=not (tar_index_only or skip_dataset_yaml), yaml_name=dataset_yaml_name)


def _check_kind(path: str) -> None:
    if is_url(path):
        return
    if os.path.isfile(path):
        raise ConfigError(
            f"{path}: prepare takes the folder that holds the tars, a .jsonl file, or a metadataset (.yaml)."
        )
    if not os.path.isdir(path):
        raise DatasetNotFoundError(no_such_path(path, "folder"))
    from energon_grain.formats.nv_meta import DatasetKind, dataset_kind

    if dataset_kind(path) is DatasetKind.ARRAY:
        raise RefusedError(f"{path}: is an array, which is read as it is: there is nothing to prepare.")


def _executor(runner: Runner, ray_address: str | None) -> contextlib.AbstractContextManager[Executor | None]:
    if runner is Runner.PROCESSES:
        if ray_address is not None:
            raise ConfigError("--ray-address is for --runner ray.")
        return contextlib.nullcontext()
    from energon_grain.prepare.executors import RayExecutor

    return RayExecutor(ray_address or "auto")


@contextlib.contextmanager
def _answers() -> Generator[None]:
    """Say which options answer, where questions end the program for want of somebody to ask."""
    try:
        yield
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo()  # behind the question
        raise ConfigError(
            "there is nobody to ask: give --non-interactive, with --split-ratio or --split-parts, and --sample-type "
            "with --field-map, or --crude, or --skip-dataset-yaml; and --force-overwrite to prepare again."
        ) from None


def _parse_field_map(text: str) -> dict[str, str]:
    import json

    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'--field-map {text!r} is not JSON ({error}): write \'{{"image": "jpg"}}\'.') from error
    if not isinstance(fields, dict):
        raise ConfigError(f'--field-map {text!r} is no mapping: write \'{{"image": "jpg"}}\'.')
    return fields


def _first_and_last(shards: tuple[str, ...]) -> str:
    return shards[0] if len(shards) == 1 else f"{shards[0]} … {shards[-1]}"


def _print_report(report: PrepareReport, *, wants_yaml: bool, yaml_name: str) -> None:
    from energon_grain.formats.data_folder import open_folder

    typer.echo(
        f"Prepared {report.root}: {counted(report.samples, 'sample')} in {counted(len(report.shard_counts), 'shard')}, "
        f"{format_bytes(report.size_bytes)}, in {report.elapsed_s:.2f} s."
    )
    if report.shards_reused:
        typer.echo(
            f"  {counted(report.shards_reused, 'shard')} had been scanned by an earlier run that did not finish."
        )
    for name, shards in report.split_parts.items():
        typer.echo(f"  {name}: {counted(report.samples_of(name), 'sample')} in {counted(len(shards), 'shard')}")
    typer.echo(f"  parts: {', '.join(report.part_names[:10])}{', …' if len(report.part_names) > 10 else ''}")
    for note in report.notes:
        typer.secho(f"  note: {note}", fg=typer.colors.YELLOW)
    if wants_yaml and not any(path.endswith(f"/{yaml_name}") for path in report.written):
        existing = (open_folder(report.root).local / ".nv-meta" / yaml_name).exists()
        typer.echo(
            f"  {yaml_name}: the existing one was kept."
            if existing
            else f"  {yaml_name}: none was written. Prepare again with --force-overwrite, and --sample-type with "
            "--field-map, or --crude."
        )
