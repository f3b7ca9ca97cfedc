# SPDX-License-Identifier: Apache-2.0
"""The commands that make datasets: `prepare`, which asks for what is open, `prepare-media`, `measure` and `convert`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from energon_grain.cli.run import options_of
from energon_grain.cli.terminal import (
    Answer,
    ProgressBar,
    note,
    own_modules,
    own_sample_type,
    with_samples,
)
from energon_grain.conversion import convert_dataset
from energon_grain.errors import ConfigError, DatasetNotFoundError, FieldMapError, RefusedError
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import is_prepared
from energon_grain.formats.records import read_records_file
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.metadataset.documents import find_joins, prepare_metadataset
from energon_grain.metadataset.prepare_joins import plan_joins
from energon_grain.metadataset.samples import measure_dataset
from energon_grain.prepare.add_media import prepare_media as prepare_it
from energon_grain.prepare.containers import container_named, container_of
from energon_grain.prepare.dataset_definition import (
    SAMPLE_TYPES,
    class_reference,
    data_fields,
    define_dataset,
    find_sample_type,
    preview_samples,
    propose_definition,
    propose_expression,
)
from energon_grain.prepare.executors import RayExecutor
from energon_grain.prepare.listing import find_shards, parse_split_parts, shards_per_part
from energon_grain.prepare.plan import PrepareRequest, plan_of
from energon_grain.prepare.preparation import PrepareReport, RunOptions, carry_out
from energon_grain.prepare.scan import decode_scan, scan_shard, shard_tasks
from energon_grain.prepare.summary import column_rows
from energon_grain.prepare.writing import check_written, open_to_prepare
from energon_grain.samplers.split_ratio import parse_ratio
from energon_grain.sources.kinds import hint_at, kind_at, kind_by_name
from energon_grain.storage.location import METADATASET_ENDINGS, is_file_of, is_url, join, located, no_such_path
from energon_grain.transforms.field_map import PSEUDO_PARTS, parse_expression
from energon_grain.words import counted, format_bytes, table, visible

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from energon_grain.conversion import ConversionReport
    from energon_grain.formats.records import RecordEncoding
    from energon_grain.formats.scan import ShardScan
    from energon_grain.metadataset.prepare_joins import MetadatasetReport
    from energon_grain.prepare.dataset_definition import DatasetDefinition, SampleField
    from energon_grain.prepare.measure import MeasureProgress
    from energon_grain.prepare.plan import PrepareRequest
    from energon_grain.prepare.preparation import PrepareReport
    from energon_grain.prepare.scan import MediaReport, PrepareProgress, ScannedDataset
    from energon_grain.sources.kinds import Described, IndexProgress, Kind

_SPLIT, _SAMPLES, _MEDIA, _RUNNING = "Split", "Samples", "Metadata of media", "How it runs"
_SHOWN_PARTS = 10
_LEAVE_OUT = "-"
_CRUDE = "CrudeWebdataset"


def _option(text: str, panel: str | None = None, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, **more)


def _flag(name: str, text: str, panel: str | None = None) -> Any:
    """A flag that has no opposite."""
    return typer.Option(name, help=text, rich_help_panel=panel)


_GLOB = "Of files whose names fit a shell pattern, such as '*.jpg'; several with commas between them."
_ByGlob = Annotated[str | None, _option(_GLOB, _MEDIA)]
_HEADER = "Of files that begin as media do: all are looked at."
_ByHeader = Annotated[bool, _flag("--media-metadata-by-header", _HEADER, _MEDIA)]
_ENDINGS = "Of files with the usual endings of media."
_ByExtension = Annotated[bool, _flag("--media-metadata-by-extension", _ENDINGS, _MEDIA)]
_WORKERS = "Processes at most; 0 for none. Default: one for each core. With Ray: tasks handed over at a time."
Workers = Annotated[int | None, _option(_WORKERS, _RUNNING, min=0)]
_RUNNER = "Work in processes of this machine, or as tasks of a Ray cluster that is running."
Runner = Annotated[Literal["processes", "ray"], _option(_RUNNER, _RUNNING)]
_CLUSTER = "That cluster, as HOST:PORT. Default: the one that Ray finds (auto)."
RayAddress = Annotated[str | None, _option(_CLUSTER, _RUNNING)]
Progress = Annotated[bool, _option("Show a progress bar, on terminals.", _RUNNING)]


_DECIDE_SPLIT = ("split_ratio", "split_parts", "exclude", "shuffle_tars")
_DECIDE_TYPE = ("sample_type", "field_map", "crude")
_DECIDE_MEDIA = ("media_metadata_by_glob", "media_metadata_by_header", "media_metadata_by_extension")
_OF_FOLDERS = (
    *(*_DECIDE_SPLIT, *_DECIDE_TYPE, "records", "tar_index_only", "fix_duplicates", "digest", *_DECIDE_MEDIA),
    *("runner", "ray_address"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `prepare` is called with; each field is an option."""

    records: Annotated[
        Literal["msgpack", "tf_example", "raw"] | None,
        _option("The shards are ArrayRecord files, with records in this encoding."),
    ] = None
    force_overwrite: Annotated[
        bool, _flag("--force-overwrite", "Prepare again without asking what is prepared already.")
    ] = False
    tar_index_only: Annotated[
        bool, _flag("--tar-index-only", "Write only the indices of a prepared dataset again.")
    ] = False
    append: Annotated[
        bool, _flag("--append", "Add the shards that a prepared dataset does not have yet; only they are scanned.")
    ] = False
    fix_duplicates: Annotated[
        bool, _flag("--fix-duplicates", "Where tars have a key in common, put their paths before members' names.")
    ] = False
    sqlite: Annotated[bool, _option("Write index.sqlite, which Energon's joins and auxiliary data need.")] = True
    digest: Annotated[
        bool, _flag("--digest", "Keep digests of the shards, for `verify` of the storage settings; reads all bytes.")
    ] = False
    split_ratio: Annotated[
        str | None, _option("Ratio of train, val and test, as 8,1,1, or of named parts, as train=9,heldout=1.", _SPLIT)
    ] = None
    split_parts: Annotated[
        list[str] | None,
        _option(
            "Shards of a split part, instead of a ratio: NAME:glob:PATTERN, NAME:re:REGEX (found anywhere), or "
            "NAME:PATTERN (braces, then a regular expression from the beginning, as in Energon). Repeatable.",
            _SPLIT,
        ),
    ] = None
    exclude: Annotated[
        str | None, _option("Leave out shards in whose relative path this regular expression is found.", _SPLIT)
    ] = None
    shuffle_tars: Annotated[bool, _flag("--shuffle-tars", "Shuffle the shards before splitting.", _SPLIT)] = False
    sample_type: Annotated[
        str | None, _option("Sample type, such as CaptioningSample, or package.module:Class.", _SAMPLES)
    ] = None
    field_map: Annotated[
        str | None, _option('Part of each field, as JSON: \'{"image": "jpg", "caption": "txt"}\'.', _SAMPLES)
    ] = None
    crude: Annotated[bool, _flag("--crude", "Samples are plain dicts, cooked by the program.", _SAMPLES)] = False
    skip_dataset_yaml: Annotated[
        bool, _flag("--skip-dataset-yaml", "Do not write (or ask about) dataset.yaml.", _SAMPLES)
    ] = False
    dataset_yaml_name: Annotated[str, _option("Name of that file in .nv-meta.", _SAMPLES)] = "dataset.yaml"
    media_metadata_by_glob: _ByGlob = None
    media_metadata_by_header: _ByHeader = False
    media_metadata_by_extension: _ByExtension = False
    num_workers: Workers = None
    runner: Runner = "processes"
    ray_address: RayAddress = None
    dry_run: Annotated[
        bool, _flag("--dry-run", "Print what would be scanned, written and removed, and write nothing.", _RUNNING)
    ] = False
    non_interactive: Annotated[bool, _flag("--non-interactive", "Never ask.", _RUNNING)] = False
    progress: Progress = True

    def refuse(self, why: str, *names: str) -> None:
        """Raise ConfigError if one of some options is given."""
        of_class = {field.name: field.default for field in fields(self)}
        given = [name for name in names if getattr(self, name) and getattr(self, name) != of_class[name]]
        if given:
            options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ConfigError(f"{why}: leave out {options}.")

    def check(self) -> None:
        """Raise ConfigError if options contradict each other."""
        if self.skip_dataset_yaml:
            self.refuse("--skip-dataset-yaml contradicts what decides the sample type", *_DECIDE_TYPE)
        if self.tar_index_only:
            self.refuse("--tar-index-only keeps shards, splits and sample types", *_DECIDE_TYPE, *_DECIDE_SPLIT)
            self.refuse("--tar-index-only looks at no media; `energon-grain prepare-media` does", *_DECIDE_MEDIA)
        if self.append:
            self.refuse("--append keeps sample types and shards", *_DECIDE_TYPE, "force_overwrite")
        if self.split_ratio and self.split_parts:
            raise ConfigError("give --split-ratio or --split-parts, not both.")

    @property
    def asks_for_type(self) -> bool:
        """Whether the user is asked what samples are, after the scan."""
        is_known = self.crude or self.field_map or self.sample_type == _CRUDE
        return self.writes_yaml and not (self.non_interactive or is_known)

    @property
    def writes_yaml(self) -> bool:
        """Whether the file that says what samples are is written, or may be."""
        return not (self.append or self.tar_index_only or self.skip_dataset_yaml)

    def request(self) -> PrepareRequest:
        """What the options ask for, before shards are listed and questions are answered."""
        looks = self.media_metadata_by_glob, self.media_metadata_by_header, self.media_metadata_by_extension
        patterns = parse_split_parts(self.split_parts) if self.split_parts else None
        return PrepareRequest(
            records=self.records,
            split_patterns=patterns,
            split_ratio=parse_ratio(self.split_ratio) if self.split_ratio else None,
            shuffle_tars=self.shuffle_tars,
            media_filter=MediaFilterConfig.parse(*looks) if any(looks) else None,
            field_map=_parse_field_map(self.field_map) if self.field_map else None,
            sample_type=None if self.asks_for_type else self.sample_type,
            crude=self.crude,
            asks=self.asks_for_type,
            dataset_yaml_name=self.dataset_yaml_name,
            force_overwrite=self.force_overwrite,
            tar_index_only=self.tar_index_only,
            append=self.append,
            fix_duplicates=self.fix_duplicates,
            digest=self.digest,
            sqlite=self.sqlite,
        )


@options_of(Options, "options")
def prepare(
    context: typer.Context,
    path: Annotated[
        str, typer.Argument(help="Folder with the shards, a JSONL file, both also by URL, or a metadataset with joins.")
    ],
    options: Options,
) -> Answer:
    """Index and split the tar files below PATH, so that they are a dataset. Of a metadataset file, index its joins.

    With --records, or where it was given before, the shards are the *.array_record files instead.

    A JSONL file is indexed and needs no more: it has neither splits nor sample types.

    Asks for the split and the sample type where the flags leave them open. The dataset keeps its old state until all is
    written; after a kill, the same command continues where it was.
    """
    location = located(path)
    if is_file_of(location, METADATASET_ENDINGS):
        options.refuse(f"{path}: a metadataset, of which only joins are prepared", *_OF_FOLDERS)
        return _plan_of_metadataset(location) if options.dry_run else _metadataset(location, options.progress)
    kind = _kind_of(location)
    if kind is not None and kind.index is not None:
        options.refuse(f"{path}: {kind.described}, which is only indexed", *_OF_FOLDERS)
        return _plan_of_index(kind, location) if options.dry_run else _index(kind.index, location, options.progress)
    _check_kind(location, kind)
    options.check()
    own_sample_type(options.sample_type)
    request, encoding, unasked = options.request(), options.records, list[str]()
    if not options.tar_index_only:
        request, encoding = _with_shards(location, request, options.exclude)
        if not options.dry_run:
            typer.echo(_found(request.shards or (), encoding))
        with _answers(context, location, request.shards or (), encoding):
            request = _with_split(location, options, request, unasked)
    if options.dry_run:
        return _plan_of_dataset(location, request, unasked)
    return _carry_out(context, location, options, request, encoding)


def _with_shards(
    location: str, request: PrepareRequest, exclude: str | None
) -> tuple[PrepareRequest, RecordEncoding | None]:
    """The request with the shards that it is about, and the encoding of their records; None: they are tars."""
    dataset = open_to_prepare(location)
    check_written(dataset.local)
    encoding = request.records or read_records_file(dataset.local)
    shards = find_shards(location, exclude=exclude, container=container_of(encoding))
    return replace(request, shards=shards), encoding


def _found(shards: Sequence[str], encoding: RecordEncoding | None) -> str:
    kind = container_of(encoding).file
    return f"Found {counted(len(shards), kind)}, {' … '.join(dict.fromkeys([shards[0], shards[-1]]))}."


def _with_split(location: str, options: Options, request: PrepareRequest, unasked: list[str]) -> PrepareRequest:
    """The request with the answers of the user to what comes before the scan.

    With `--dry-run` nothing is asked: the questions go into `unasked`, and the answers are those that are proposed.
    """
    if _is_replaced(location, options, unasked):
        request = replace(request, force_overwrite=True)
    if request.split_ratio is not None or request.split_patterns is not None or options.append:
        return request
    if options.non_interactive:
        raise ConfigError("--non-interactive needs --split-ratio (such as 8,1,1) or --split-parts.")
    count = len(request.shards or ())
    if not options.dry_run:
        return replace(request, split_ratio=_ask_split_ratio(count))
    proposed = _default_ratio(count)
    unasked.append(f"the ratio of train, val and test; {proposed} is proposed")
    return replace(request, split_ratio=parse_ratio(proposed))


def _is_replaced(location: str, options: Options, unasked: list[str]) -> bool:
    """Ask whether to prepare a prepared dataset again; a no ends the program. False where it is not prepared."""
    if options.force_overwrite or options.append or options.non_interactive:
        return False
    if not is_prepared(open_to_prepare(location).local):
        return False
    if options.dry_run:
        unasked.append("whether to prepare the dataset again and replace its splits")
    elif not typer.confirm("The dataset is prepared already. Prepare it again, and replace its splits?"):
        raise typer.Exit(1)
    return True


def _plan_of_dataset(location: str, request: PrepareRequest, unasked: Sequence[str]) -> Answer:

    plan = plan_of(open_to_prepare(location), request)
    return Answer(document=plan.document(unasked), lines=plan.lines(unasked))


def _carry_out(
    context: typer.Context,
    location: str,
    options: Options,
    request: PrepareRequest,
    encoding: RecordEncoding | None,
) -> Answer:
    """Prepare a dataset; the user is asked for the sample type when it is scanned."""
    chosen: list[DatasetDefinition | None] = []
    with (
        running(options.runner, options.ray_address) as executor,
        ProgressBar("Scanning", shown=options.progress) as bar,
        _answers(context, location, request.shards or (), encoding),
    ):

        def choose(scanned: ScannedDataset) -> DatasetDefinition | None:
            bar.stop()
            chosen.append(_ask_definition(scanned, options.sample_type))
            return chosen[0]

        run_options = RunOptions(
            choose_definition=choose if request.asks else None,
            num_workers=options.num_workers,
            notify=_shown_by(bar),
            executor=executor,
        )
        report = carry_out(plan_of(open_to_prepare(location), request), run_options)
    lines = [*_lines(report, options.dataset_yaml_name if options.writes_yaml else None, options.append)]
    if request.asks or (request.split_ratio and not options.split_ratio):
        answered = {"--split-ratio": _written_ratio(request.split_ratio)} if request.split_ratio else {}
        answered |= _written_definition(chosen[0]) if chosen else {}
        again = _command(context, answered, request.force_overwrite)
        lines += ["The same command without questions:", f"  {again}"]
    return Answer(document=with_samples(report), lines=lines)


def _written_ratio(ratio: Mapping[str, float] | Sequence[float]) -> str:
    assert isinstance(ratio, Mapping)  # of `parse_ratio`
    return ",".join(f"{name}={share:g}" for name, share in ratio.items())


def _written_definition(definition: DatasetDefinition | None) -> dict[str, str | None]:
    """The options that say what a definition says."""
    import json

    if definition is None:
        return {"--skip-dataset-yaml": None}
    if definition.field_map is None:
        return {"--crude": None}
    module, name = (str(definition.content["sample_type"][key]) for key in ("__module__", "__class__"))
    own = not module.startswith("megatron.energon")
    return {
        "--sample-type": f"{module}:{name}" if own else name,
        "--field-map": json.dumps(definition.content["field_map"]),
    }


def _command(context: typer.Context, answered: Mapping[str, str | None], overwrite: bool = False) -> str:
    """The command that does without questions what this one does: its own options, and those that answer.

    Args:
        context: Of this command.
        answered: Options and their values; None: those without one.
        overwrite: Whether what is prepared already is prepared again.
    """
    import shlex

    words = [context.params["path"]]
    options = {"--non-interactive": None, **answered, **({"--force-overwrite": None} if overwrite else {})}
    for parameter in context.command.params:
        given = str(context.get_parameter_source(str(parameter.name))).endswith("COMMANDLINE")
        if given and parameter.name != "path" and parameter.opts[0] not in options:
            names = parameter.opts[0], *parameter.secondary_opts
            words += _written_option(names, context.params.get(str(parameter.name)))
    words += [name if value is None else f"{name}={value}" for name, value in options.items()]
    return f"energon-grain prepare {shlex.join(words)}"


def _written_option(names: Sequence[str], value: Any) -> list[str]:
    """An option as it is written; `names` are its own and, of a flag, the one of its opposite."""
    if isinstance(value, bool):
        return [names[0] if value else names[1]]
    return [f"{names[0]}={one}" for one in (value if isinstance(value, list | tuple) else [value])]


def prepare_media(
    path: Annotated[str, typer.Argument(help="A dataset that is prepared, or a folder of files; also by URL.")],
    media_metadata_by_glob: _ByGlob = None,
    media_metadata_by_header: _ByHeader = False,
    media_metadata_by_extension: _ByExtension = False,
    num_workers: Workers = None,
    runner: Runner = "processes",
    ray_address: RayAddress = None,
    progress: Progress = True,
) -> Answer:
    """Gather sizes, durations and rates of images, videos and sounds from their headers; nothing is decoded.

    They go into the index of a dataset, or beside the files of a plain folder: for `get_media_metadata`, and for
    columns. What is known of files that are not looked at stays.
    """
    media = MediaFilterConfig.parse(media_metadata_by_glob, media_metadata_by_header, media_metadata_by_extension)
    location = located(path)
    _check_kind(location, _kind_of(location))
    with running(runner, ray_address) as executor, ProgressBar("Looking", shown=progress) as bar:
        report = prepare_it(location, media, num_workers=num_workers, progress=_shown_by(bar), executor=executor)
    if isinstance(report, PrepareReport):
        held = f"{counted(report.samples, 'sample')} in {counted(len(report.shard_counts), 'shard')}"
        document: object = with_samples(report)
    else:
        held, document = counted(report.files, "file"), report
    done = f"Looked at {report.root}: {held}, {format_bytes(report.size_bytes)}, in {report.elapsed_s:.2f} s."
    return Answer(document=document, lines=[done, *_lines_of_media(report.media)])


def _lines_of_media(media: MediaReport | None) -> Iterator[str]:
    if media is None:
        return
    yield f"  metadata of {counted(media.found, 'file')}"
    if media.failures:
        more = "" if media.failures == len(media.failed) else ", such as these"
        which = f"{counted(media.failures, 'file')} with a damaged header"
        yield "  " + note(f"{which}, of which nothing is known{more}:")
        yield from (f"    {each}" for each in media.failed)


def _plan_of_index(kind: Kind, path: str) -> Answer:
    if kind.index_plan is None:
        raise ConfigError(f"{path}: {kind.described}, which cannot be planned: leave --dry-run out.")
    plan = kind.index_plan(path)
    return Answer(document=plan, lines=plan.lines())


def _index(index: Callable[[str, IndexProgress], Described], path: str, progress: bool) -> Answer:
    """Index data that have neither splits nor sample types."""
    with ProgressBar("Indexing", shown=progress) as bar:
        report = index(path, lambda done, total, samples: bar.advance_to(done, total, f"{samples:,} samples"))
    return Answer(document=report, lines=report.lines())


def _plan_of_metadataset(path: str) -> Answer:

    plans = plan_joins(find_joins(path))
    what = "index its joins; indices of joins that it no longer has are removed" if plans else "it has no joins"
    lines = [f"Plan: {path}: {what}. Nothing was written.", *(line for plan in plans for line in plan.lines())]
    return Answer(document=plans, lines=lines)


def _metadataset(path: str, progress: bool) -> Answer:
    """Index the joins of a metadataset."""
    with ProgressBar("Joining", shown=progress) as bar:
        report = prepare_metadataset(
            path,
            progress=lambda place, keys, total: bar.advance_to(keys, total, f"{keys:,}/{total:,} keys, {place}"),
        )
    return Answer(document=report, lines=_lines_of_joins(path, report))


def _lines_of_joins(path: str, report: MetadatasetReport) -> Iterator[str]:
    if not report.joins:
        yield f"{path}: has no joins, there is nothing to prepare."
    for made in report.joins:
        done = "joined" if made.built else "up to date"
        yield f"{', '.join(made.places)}: {counted(made.rows, 'row')} {done}, in {made.folder.name}"
        if made.skipped:
            yield f"  without a row: {counted(made.skipped, 'sample')} of the first dataset"
        for dataset, missing in made.missing.items():
            if missing:
                yield f"  without a sample of {dataset}: {counted(missing, 'row')}"
    yield from (f"  removed the index {name}, which no join needs any more" for name in report.removed)
    yield from (f"  {note(each)}" for each in report.notes)
    yield f"Prepared {path} in {report.elapsed_s:.2f} s."


def _kind_of(path: str) -> Kind | None:
    """What is at a path; None: a URL whose text does not say it. No store is asked."""
    return kind_by_name(path) if is_url(path) else kind_at(path)


def _check_kind(path: str, kind: Kind | None) -> None:
    if is_url(path):
        return
    if os.path.isfile(path):
        taken = "prepare takes the folder that holds the tars, a .jsonl file, or a metadataset (.yaml)."
        raise ConfigError(f"{path}: {hint_at(path) or taken}")
    if not os.path.isdir(path):
        raise DatasetNotFoundError(no_such_path(path, "folder"))
    if kind is not None and kind.open is not None:
        raise RefusedError(f"{path}: is {kind.described}, which is read as it is: there is nothing to prepare.")


def running(runner: str, ray_address: str | None) -> contextlib.AbstractContextManager[Executor | None]:
    """The executor that options ask for; None: processes of this machine."""
    if runner == "processes":
        if ray_address is not None:
            raise ConfigError("--ray-address is for --runner ray.")
        return contextlib.nullcontext()

    return RayExecutor(ray_address or "auto")


def _shown_by(bar: ProgressBar) -> Callable[[PrepareProgress], None]:
    """Runs over bytes, where known: shards differ in size."""

    def show(now: PrepareProgress) -> None:
        of = f"/{now.shards_total:,}" if now.shards_total else ""
        detail = f"{now.shards_done:,}{of} shards, {now.samples:,} samples"
        if now.stage == "scan" and now.bytes_done:
            detail += f", {format_bytes(now.bytes_done / bar.elapsed_s)}/s"
        labels = {"write": "Writing", "index": "Writing the index", "commit": "Putting it in place"}
        done, total = (now.bytes_done, now.bytes_total) if now.bytes_total else (now.shards_done, now.shards_total)
        bar.advance_to(done, total, detail, labels.get(now.stage))

    return show


def _parse_field_map(text: str) -> dict[str, str]:
    import json

    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'--field-map {text!r} is not JSON ({error}): write \'{{"image": "jpg"}}\'.') from error
    if not isinstance(fields, dict):
        raise ConfigError(f'--field-map {text!r} is no mapping: write \'{{"image": "jpg"}}\'.')
    return fields


def _lines(report: PrepareReport, wants_yaml: str | None, append: bool) -> Iterator[str]:

    yield (
        f"Prepared {report.root}: {counted(report.samples, 'sample')} in {counted(len(report.shard_counts), 'shard')}, "
        f"{format_bytes(report.size_bytes)}, in {report.elapsed_s:.2f} s."
    )
    if report.shards_reused:
        why = "are in the index already" if append else "had been scanned by an earlier run that did not finish"
        yield f"  {counted(report.shards_reused, 'shard')} {why}."
    for name, shards in report.split_parts.items():
        yield f"  {name}: {counted(report.samples_of(name), 'sample')} in {counted(len(shards), 'shard')}"
    yield f"  parts: {_some(report.part_names)}"
    yield from _lines_of_media(report.media)
    yield from (f"  {note(each)}" for each in report.notes)
    if wants_yaml is not None and not any(path.endswith(f"/{wants_yaml}") for path in report.written):
        kept = (open_folder(report.root).local / ".nv-meta" / wants_yaml).exists()
        ways = "Prepare again with --force-overwrite, and --sample-type with --field-map, or --crude."
        yield f"  {wants_yaml}: the existing one was kept." if kept else f"  {wants_yaml}: none was written. {ways}"


def _some(parts: Sequence[str]) -> str:
    return ", ".join([*parts[:_SHOWN_PARTS], *(["…"] if len(parts) > _SHOWN_PARTS else [])])


@contextlib.contextmanager
def _answers(
    context: typer.Context, location: str, shards: Sequence[str], records: RecordEncoding | None
) -> Generator[None]:
    """Give the command that needs no answers where the questions reach no user."""
    try:
        yield
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo()  # behind the question
        answered: dict[str, str | None] = {}
        if not (context.params["split_ratio"] or context.params["split_parts"]):
            answered["--split-ratio"] = _default_ratio(len(shards))
        if not (context.params["crude"] or context.params["skip_dataset_yaml"] or context.params["sample_type"]):
            name, fields = _proposed_for(location, shards, records)
            crude = name == _CRUDE
            made = define_dataset(sample_type=None if crude else name, field_map=fields or None, crude=crude)
            answered |= _written_definition(made)
        raise ConfigError(
            f"this is not a terminal: give --non-interactive, with --split-ratio or --split-parts, and --sample-type "
            f"with --field-map, or --crude, or --skip-dataset-yaml; and --force-overwrite to prepare again. For these "
            f"samples, for example:\n  {_command(context, answered)}"
        ) from None


def _proposed_for(location: str, shards: Sequence[str], records: RecordEncoding | None) -> tuple[str, dict[str, str]]:
    """The proposal for the samples of the first shard."""
    task = shard_tasks(location, shards[:1], records=records)[0]
    record = scan_shard(location, task)
    if isinstance(record, Exception):
        raise record
    scan = decode_scan(record)
    return propose_definition(scan.part_names, _example(location, task.name, scan, records))


def _example(root: str, shard: str, scan: ShardScan, records: RecordEncoding | None) -> object:
    """Content of the `json` part of the first sample that has one."""
    import json

    for _, _, text in preview_samples(join(root, shard), scan, records=records):
        if text is not None:
            return json.loads(text)
    return None


def _default_ratio(shard_count: int) -> str:
    return "8,1,1" if shard_count >= 3 else "1,0,0"


def _ask_split_ratio(shard_count: int) -> dict[str, float]:
    """Ask for the split until it is one that `shard_count` shards can be dealt to."""
    while True:
        answer: str = typer.prompt("Ratio of train, val and test", default=_default_ratio(shard_count))
        try:
            ratio = parse_ratio(answer)
            shards_per_part(shard_count, ratio)
        except ConfigError as error:
            typer.echo(f"{error}")
        else:
            return ratio


def _ask_definition(scanned: ScannedDataset, sample_type: str | None) -> DatasetDefinition | None:
    """Show the first samples, then ask for sample type (unless it is given) and field map."""
    task, scan = scanned.shards[0].task, next(scanned.scans())
    for key, sizes, json_text in preview_samples(join(scanned.root, task.name), scan, records=task.records):
        parts = ", ".join(f"{name} ({size:,} bytes)" for name, size in sizes.items())
        typer.echo(visible(f"Sample {key!r} of {task.name}: {parts}"))
        if json_text is not None:
            typer.echo(visible(json_text, lines=True))
    typer.echo(visible(f"Parts: {_some(scanned.part_names)}"))
    if sample_type is None:
        if not typer.confirm("Choose a sample type now (writes dataset.yaml)?", default=True):
            return None
        example = _example(scanned.root, task.name, scan, task.records)
        proposed, fields = propose_definition(scanned.part_names, example)
        sample_type = _ask_sample_type(proposed, fields)
        if not sample_type and proposed != _CRUDE:
            return define_dataset(sample_type=proposed, field_map=fields)
        sample_type = sample_type or proposed
    if sample_type == _CRUDE:
        typer.echo("Samples will be plain dicts. Your task encoder needs a cooker for them.")
        return define_dataset(sample_type=None, field_map=None, crude=True)
    find_sample_type(sample_type)
    return _ask_field_map(sample_type, scanned.part_names)


def _ask_sample_type(proposed: str, fields: Mapping[str, str]) -> str:
    """Ask for the sample type; "" takes the proposal, with its field map."""
    names = [*SAMPLE_TYPES, _CRUDE]
    for number, name in enumerate(names):
        known = ", ".join(field.name for field in data_fields(SAMPLE_TYPES[name])) if name in SAMPLE_TYPES else ""
        typer.echo(f"{number:3}. {name:28} {known or 'plain dicts, for cookers of the program'}")
    how = ", ".join(f"{field} from {part}" for field, part in fields.items()) or "plain dicts"
    typer.echo(visible(f"Proposal for these parts: {proposed} ({how}). Enter takes it."))
    while True:
        answer: str = typer.prompt("Number or name of the sample type", default="", show_default=False).strip()
        try:
            return _sample_type(answer, names)
        except ConfigError as error:
            typer.echo(f"{error}")


def _sample_type(answer: str, names: Sequence[str]) -> str:
    """The sample type that was chosen by its number or name. Raises ConfigError."""
    if answer.isdecimal() and int(answer) < len(names):
        return names[int(answer)]
    if answer not in ("", _CRUDE):
        own_sample_type(answer)
        find_sample_type(answer)
    return answer


def _ask_field_map(sample_type: str, parts: Sequence[str]) -> DatasetDefinition | None:

    fields = data_fields(find_sample_type(sample_type))
    typer.echo(
        f"Which part fills each field of {class_reference(sample_type)['__class__']}? Write a part, several to take "
        f"the first that a sample has (jpg,png), or a value inside JSON (json[captions][0])."
    )
    while True:
        answers = {field.name: _ask_field(field, parts) for field in fields}
        field_map = {name: answer for name, answer in answers.items() if answer is not None}
        try:
            return define_dataset(sample_type=sample_type, field_map=field_map)
        except FieldMapError as error:
            typer.echo(f"{error}")


def _ask_field(field: SampleField, parts: Sequence[str]) -> str | None:
    """Ask for the expression of one field; None leaves an optional one out."""
    proposal = propose_expression(field.name, parts)
    skip = "" if field.required else f", '{_LEAVE_OUT}' to leave it at {field.default}"
    while True:
        default = proposal or (None if field.required else _LEAVE_OUT)
        answer: str = typer.prompt(f"  {field.name} ({field.annotation}{skip})", default=default).strip()
        if answer == _LEAVE_OUT and not field.required:
            return None
        unknown = [option.part for option in parse_expression(answer) if option.part not in {*parts, *PSEUDO_PARTS}]
        if not unknown:
            return answer
        typer.echo(f"    There is no part {unknown[0]!r}. There are {_some(parts)}.")


def measure(
    path: Annotated[
        str,
        typer.Argument(
            help="A dataset, a JSONL file, Parquet files or tars; or a metadataset with one join; also by URL."
        ),
    ],
    column: Annotated[
        list[str] | None,
        typer.Option(help="A column and its function, as tokens=my_module:count_tokens. Repeatable: one pass for all."),
    ] = None,
    attach: Annotated[
        list[str] | None,
        typer.Option(
            help="A column and its file, as tokens=tokens.npy, or score=scores.parquet (.csv, .jsonl); by the field "
            "`key`, else by row. Another field: score=scores.csv:aesthetic. Repeatable."
        ),
    ] = None,
    parts: Annotated[
        str | None, typer.Option(help="Parts that functions get, as txt,json. Default: all; fewer are read quicker.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(help="Of the functions, kept with the columns. Default: their own, else 1.")
    ] = None,
    split_part: Annotated[str, typer.Option(help="Of a metadataset: the split that has the join.")] = "train",
    num_workers: Workers = None,
    runner: Runner = "processes",
    ray_address: RayAddress = None,
    progress: Progress = True,
) -> Answer:
    """Call a function on every sample, and keep the number that it returns as a column: to filter, mix and pack by.

    The function gets the parts of a sample as bytes, {"txt": b"…"}, and returns a number, or None where there is none.
    Its module is looked for in the current folder, too. After a kill, the same command continues where it was.
    """
    columns, files = _pairs("--column", column), _pairs("--attach", attach)
    if not columns and not files:
        raise ConfigError("give --column NAME=module:function, or --attach NAME=FILE.")
    own_modules(columns.values())
    with running(runner, ray_address) as executor, ProgressBar("Measuring", shown=progress) as bar:

        def show(now: MeasureProgress) -> None:
            speed = f", {now.done / bar.elapsed_s:,.0f}/s" if now.done else ""
            bar.advance_to(now.done, now.total, f"{now.done:,}/{now.total:,} samples{speed}")

        report = measure_dataset(
            path,
            columns,
            attach=files,
            parts=None if parts is None else [part.strip() for part in parts.split(",")],
            version=version,
            split_part=split_part,
            num_workers=num_workers,
            executor=executor,
            progress=show,
        )
    lines = [f"Measured {counted(report.samples, 'sample')} of {report.path} in {report.elapsed_s:.2f} s."]
    if report.samples_reused:
        lines.append(f"  {counted(report.samples_reused, 'sample')} had been measured by a run that did not finish.")

    lines += [*table(*column_rows(report.columns)), *(f"  {note(each)}" for each in report.notes)]
    return Answer(document=report, lines=lines)


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            example = "my_module:count_tokens" if option == "--column" else "tokens.npy"
            raise ConfigError(f"{option} {each}: write a name and what it is made of, as tokens={example}")
        if name in pairs:
            raise ConfigError(f"{option} {each}: the column {name!r} is given twice")
        pairs[name] = value
    return pairs


def convert(
    source: Annotated[
        str,
        typer.Argument(help="Path or URL of a dataset, of JSONL (also .gz, .zst), Parquet, bare tars, or arrays."),
    ],
    target: Annotated[str, typer.Argument(help="New or empty folder of this machine.")],
    to: Annotated[
        Literal["array-record", "tar"] | None,
        typer.Option(help="Kind of the new shards. Default: the other one; tars, where there are no shards."),
    ] = None,
    compression: Annotated[Literal["none", "zstd"], typer.Option(help="Of each record of ArrayRecord files.")] = "none",
    shard_samples: Annotated[
        int | None, typer.Option(min=1, help="Samples of a new shard, where there are no shards. Default: 5,000.")
    ] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=0, help="Processes at most; 0 for none. Default: one for each core.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read every new shard back and compare all keys and bytes.")] = True,
    sqlite: Annotated[
        bool, typer.Option(help="Write index.sqlite for tars, which Energon's joins and auxiliary data need.")
    ] = True,
    progress: Annotated[bool, typer.Option(help="Show a progress bar, on terminals.")] = True,
) -> Answer:
    """Convert a dataset, tars to ArrayRecord files or back, shard by shard, and prepare the result.

    Keys, parts, splits and configuration stay, so the new dataset gives the same stream and continues from saved states
    of the old one. Data in no shards (JSONL files, arrays, …) becomes a crude dataset, all of it train. After a kill,
    the same command continues where it was.
    """
    with ProgressBar("Converting", shown=progress) as bar:
        report = convert_dataset(
            source,
            target,
            to=to,
            compression=compression,
            shard_samples=shard_samples,
            num_workers=num_workers,
            verify=verify,
            sqlite=sqlite,
            progress=_shown_by(bar),
        )
    return Answer(document=with_samples(report), lines=_lines_of_conversion(report))


def _lines_of_conversion(report: ConversionReport) -> list[str]:
    kind = container_named(report.container).file
    lines = [
        f"Converted {report.source} to {report.target}: {counted(report.samples, 'sample')} in "
        f"{counted(len(report.shard_counts), kind)}, {format_bytes(report.target_bytes)} "
        f"({format_bytes(report.source_bytes)} before), in {report.elapsed_s:.2f} s."
    ]
    if report.shards_reused:
        lines.append(
            f"  {counted(report.shards_reused, 'shard')} had been written by an earlier run that did not finish."
        )
    read_back = "every shard was read back and compared." if report.verified else "nothing was read back."
    return [*lines, f"  {read_back}", *(f"  {note(each)}" for each in report.notes)]
