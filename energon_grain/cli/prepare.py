# SPDX-License-Identifier: Apache-2.0
"""The commands `prepare`, which asks for missing answers, and `prepare-media`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from energon_grain.cli.run import options_of
from energon_grain.cli.running import (
    Progress,
    RayAddress,
    Runner,
    Workers,
    flag,
    option,
    running,
    shown_by,
)
from energon_grain.cli.terminal import Answer, ProgressBar, announce, note, own_sample_type, with_samples
from energon_grain.errors import ConfigError, DatasetNotFoundError, FieldMapError, RefusedError
from energon_grain.formats.data_folder import open_folder
from energon_grain.formats.nv_meta import is_prepared
from energon_grain.formats.records import read_records_file
from energon_grain.media.headers import MediaFilterConfig
from energon_grain.metadataset.documents import find_joins, prepare_metadataset
from energon_grain.metadataset.prepare_joins import plan_joins
from energon_grain.prepare.add_media import prepare_media as prepare_it
from energon_grain.prepare.containers import container_of
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
from energon_grain.prepare.listing import find_shards, parse_split_parts, shards_per_part
from energon_grain.prepare.plan import PrepareRequest, plan_of
from energon_grain.prepare.preparation import PrepareReport, RunOptions, carry_out
from energon_grain.prepare.scan import decode_scan, scan_shard, shard_tasks
from energon_grain.prepare.writing import check_written, open_to_prepare
from energon_grain.samplers.split_ratio import parse_ratio
from energon_grain.sources.kinds import hint_at, kind_at, kind_by_name
from energon_grain.storage.location import METADATASET_ENDINGS, is_file_of, is_url, join, located, no_such_path
from energon_grain.transforms.field_map import PSEUDO_PARTS, parse_expression
from energon_grain.words import counted, format_bytes, visible

if TYPE_CHECKING:
    from energon_grain.formats.records import RecordEncoding
    from energon_grain.formats.scan import ShardScan
    from energon_grain.metadataset.prepare_joins import MetadatasetReport
    from energon_grain.prepare.dataset_definition import DatasetDefinition, SampleField
    from energon_grain.prepare.scan import MediaReport, ScannedDataset
    from energon_grain.sources.kinds import Described, IndexProgress, Kind

_SPLIT, _SAMPLES, _MEDIA, _RUNNING = "Split", "Samples", "Media metadata", "How it runs"
_SHOWN_PARTS = 10
_LEAVE_OUT = "-"
_CRUDE = "CrudeWebdataset"
_NOT_REPEATED = ("path", "quiet", "verbose")
"""Parameters that the command without questions does not repeat as options."""

_GLOB = "Collect metadata of files whose names match shell patterns, as '*.jpg,*.mp4'."
_ByGlob = Annotated[str | None, option(_GLOB, _MEDIA)]
_HEADER = "Collect metadata of files whose first bytes are those of media; looks at every file."
_ByHeader = Annotated[bool, flag("--media-metadata-by-header", _HEADER, _MEDIA)]
_ENDINGS = "Collect metadata of files with the usual endings of media."
_ByExtension = Annotated[bool, flag("--media-metadata-by-extension", _ENDINGS, _MEDIA)]

_DECIDE_SPLIT = ("split_ratio", "split_parts", "exclude", "shuffle_tars")
_DECIDE_TYPE = ("sample_type", "field_map", "crude")
_DECIDE_MEDIA = ("media_metadata_by_glob", "media_metadata_by_header", "media_metadata_by_extension")
_OF_FOLDERS = (
    *(*_DECIDE_SPLIT, *_DECIDE_TYPE, "records", "tar_index_only", "fix_duplicates", "digest", *_DECIDE_MEDIA),
    *("runner", "ray_address"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `prepare`."""

    records: Annotated[
        Literal["msgpack", "tf_example", "raw"] | None,
        option("The shards are ArrayRecord files whose records have this encoding."),
    ] = None
    force_overwrite: Annotated[bool, flag("--force-overwrite", "Prepare a prepared dataset again without asking.")] = (
        False
    )
    tar_index_only: Annotated[bool, flag("--tar-index-only", "Write only the indices of a prepared dataset again.")] = (
        False
    )
    append: Annotated[bool, flag("--append", "Add new shards to a prepared dataset; only those are scanned.")] = False
    fix_duplicates: Annotated[
        bool, flag("--fix-duplicates", "Make keys unique across tars: put the path of the tar before each member name.")
    ] = False
    sqlite: Annotated[bool, option("Write index.sqlite, which Energon's joins and auxiliary data need.")] = True
    digest: Annotated[
        bool | None,
        option(
            "Store digests of the shards, for receipts, and for `verify` of the storage settings; reads every byte. "
            "Default: if the scan reads all bytes anyway."
        ),
    ] = None
    split_ratio: Annotated[
        str | None, option("Ratio of train, val and test, as 8,1,1, or of named parts, as train=9,heldout=1.", _SPLIT)
    ] = None
    split_parts: Annotated[
        list[str] | None,
        option(
            "Shards of a split part, instead of a ratio: NAME:glob:PATTERN, NAME:re:REGEX (found anywhere), or "
            "NAME:PATTERN (as in Energon: braces, then a regular expression from the beginning). Repeatable.",
            _SPLIT,
        ),
    ] = None
    exclude: Annotated[
        str | None, option("Leave out shards whose relative path contains this regular expression.", _SPLIT)
    ] = None
    shuffle_tars: Annotated[bool, flag("--shuffle-tars", "Shuffle the shards before splitting.", _SPLIT)] = False
    sample_type: Annotated[
        str | None, option("Sample type, such as CaptioningSample, or package.module:Class.", _SAMPLES)
    ] = None
    field_map: Annotated[
        str | None, option('Part of each field, as JSON: \'{"image": "jpg", "caption": "txt"}\'.', _SAMPLES)
    ] = None
    crude: Annotated[
        bool, flag("--crude", "Samples are plain dicts, which cookers of the program turn into samples.", _SAMPLES)
    ] = False
    skip_dataset_yaml: Annotated[
        bool, flag("--skip-dataset-yaml", "Do not write dataset.yaml, and do not ask for it.", _SAMPLES)
    ] = False
    dataset_yaml_name: Annotated[str, option("Name of that file in .nv-meta.", _SAMPLES)] = "dataset.yaml"
    media_metadata_by_glob: _ByGlob = None
    media_metadata_by_header: _ByHeader = False
    media_metadata_by_extension: _ByExtension = False
    num_workers: Workers = None
    runner: Runner = "processes"
    ray_address: RayAddress = None
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the plan: shards to scan, files to write and remove. Write nothing.", _RUNNING)
    ] = False
    non_interactive: Annotated[bool, flag("--non-interactive", "Never ask: options give all answers.", _RUNNING)] = (
        False
    )
    progress: Progress = True

    def refuse(self, why: str, *names: str) -> None:
        """Raise ConfigError if any of these options is given."""
        of_class = {field.name: field.default for field in fields(self)}
        given = [name for name in names if getattr(self, name) and getattr(self, name) != of_class[name]]
        if given:
            options = " and ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ConfigError(f"{why}: leave out {options}.")

    def check(self) -> None:
        """Raise ConfigError if options contradict each other."""
        if self.skip_dataset_yaml:
            self.refuse("--skip-dataset-yaml contradicts the options for the sample type", *_DECIDE_TYPE)
        if self.tar_index_only:
            self.refuse("--tar-index-only keeps shards, splits and sample types", *_DECIDE_TYPE, *_DECIDE_SPLIT)
            self.refuse("--tar-index-only ignores media; use `energon-grain prepare-media`", *_DECIDE_MEDIA)
        if self.append:
            self.refuse("--append keeps sample types and shards", *_DECIDE_TYPE, "force_overwrite")
        if self.split_ratio and self.split_parts:
            raise ConfigError("give --split-ratio or --split-parts, not both.")

    @property
    def asks_for_type(self) -> bool:
        """Whether the user is asked for the sample type, after the scan."""
        is_known = self.crude or self.field_map or self.sample_type == _CRUDE
        return self.writes_yaml and not (self.non_interactive or is_known)

    @property
    def writes_yaml(self) -> bool:
        """Whether `dataset.yaml` may be written."""
        return not (self.append or self.tar_index_only or self.skip_dataset_yaml)

    def request(self) -> PrepareRequest:
        """The request of the options, before shards are listed and questions are answered."""
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
    """Prepare a folder of tar files as a dataset: index, split, type.

    For a metadataset file, index its joins. With --records, now or in an earlier call, the shards are *.array_record
    files. A JSONL file is only indexed: it has neither splits nor sample types.

    Asks for the split and the sample type if options do not set them. The dataset keeps its old state until everything
    is written. After an interruption, the same command continues.

    Examples:
        energon-grain prepare tars --split-ratio 8,1,1
        energon-grain prepare tars --non-interactive --split-ratio 1,0,0 --crude
    """
    location = located(path)
    if is_file_of(location, METADATASET_ENDINGS):
        options.refuse(f"{path}: a metadataset: only its joins are prepared", *_OF_FOLDERS)
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
            announce(_found(request.shards or (), encoding))
        with _answers(context, location, request.shards or (), encoding):
            request = _with_split(location, options, request, unasked)
    if options.dry_run:
        return _plan_of_dataset(location, request, unasked)
    return _carry_out(context, location, options, request, encoding)


def _with_shards(
    location: str, request: PrepareRequest, exclude: str | None
) -> tuple[PrepareRequest, RecordEncoding | None]:
    """The request with its shards, and the encoding of their records; None: they are tars."""
    dataset = open_to_prepare(location)
    check_written(dataset.local)
    encoding = request.records or read_records_file(dataset.local)
    shards = find_shards(location, exclude=exclude, container=container_of(encoding))
    return replace(request, shards=shards), encoding


def _found(shards: Sequence[str], encoding: RecordEncoding | None) -> str:
    kind = container_of(encoding).file
    return f"Found {counted(len(shards), kind)}, {' … '.join(dict.fromkeys([shards[0], shards[-1]]))}."


def _with_split(location: str, options: Options, request: PrepareRequest, unasked: list[str]) -> PrepareRequest:
    """The request with the user's answers to the questions before the scan.

    With `--dry-run`, no question is asked: the questions go into `unasked`, and the proposals are the answers.
    """
    if _is_replaced(location, options, unasked):
        request = replace(request, force_overwrite=True)
    if request.split_ratio is not None or request.split_patterns is not None or options.append:
        return request
    if options.non_interactive:
        raise ConfigError("--non-interactive needs --split-ratio, such as 8,1,1, or --split-parts.")
    count = len(request.shards or ())
    if not options.dry_run:
        return replace(request, split_ratio=_ask_split_ratio(count))
    proposed = _default_ratio(count)
    unasked.append(f"the ratio of train, val and test; {proposed} is proposed")
    return replace(request, split_ratio=parse_ratio(proposed))


def _is_replaced(location: str, options: Options, unasked: list[str]) -> bool:
    """Ask whether to prepare a prepared dataset again; a no ends the program. False if it is not prepared."""
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
    """Prepare a dataset. The user is asked for the sample type after the scan."""
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
            notify=shown_by(bar),
            executor=executor,
        )
        report = carry_out(plan_of(open_to_prepare(location), request), run_options)
    lines = [*_lines(report, options.dataset_yaml_name if options.writes_yaml else None, options.append)]
    if request.asks or (request.split_ratio and not options.split_ratio):
        answered = {"--split-ratio": _written_ratio(request.split_ratio)} if request.split_ratio else {}
        answered |= _written_definition(chosen[0]) if chosen else {}
        again = _command(context, answered, request.force_overwrite)
        lines += ["The same command without questions:", f"  {again}"]
    return Answer(document=with_samples(report), lines=lines, is_report=True)


def _written_ratio(ratio: Mapping[str, float] | Sequence[float]) -> str:
    assert isinstance(ratio, Mapping)  # as `parse_ratio` returns it
    return ",".join(f"{name}={share:g}" for name, share in ratio.items())


def _written_definition(definition: DatasetDefinition | None) -> dict[str, str | None]:
    """The options for a definition."""
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
    """The same command without questions: its options, and options in place of the answers.

    Args:
        context: The context of this command.
        answered: Options and their values; None: an option without a value.
        overwrite: Whether a prepared dataset is prepared again.
    """
    import shlex

    words = [context.params["path"]]
    options = {"--non-interactive": None, **answered, **({"--force-overwrite": None} if overwrite else {})}
    for parameter in context.command.params:
        given = str(context.get_parameter_source(str(parameter.name))).endswith("COMMANDLINE")
        if given and parameter.name not in _NOT_REPEATED and parameter.opts[0] not in options:
            names = parameter.opts[0], *parameter.secondary_opts
            words += _written_option(names, context.params.get(str(parameter.name)))
    words += [name if value is None else f"{name}={value}" for name, value in options.items()]
    return f"energon-grain prepare {shlex.join(words)}"


def _written_option(names: Sequence[str], value: Any) -> list[str]:
    """An option as the user writes it; `names` are its name and, for a flag, the name of its opposite."""
    if isinstance(value, bool):
        return [names[0] if value else names[1]]
    return [f"{names[0]}={one}" for one in (value if isinstance(value, list | tuple) else [value])]


def prepare_media(
    path: Annotated[str, typer.Argument(help="Path or URL of a prepared dataset, or of a folder of files.")],
    media_metadata_by_glob: _ByGlob = None,
    media_metadata_by_header: _ByHeader = False,
    media_metadata_by_extension: _ByExtension = False,
    num_workers: Workers = None,
    runner: Runner = "processes",
    ray_address: RayAddress = None,
    progress: Progress = True,
) -> Answer:
    """Collect sizes, durations and rates of images, videos and audio from their headers, without decoding.

    The metadata go into the index of a dataset, or beside the files of a plain folder. `get_media_metadata` and columns
    read them. Metadata of files that are not selected this time stay.

    Examples:
        energon-grain prepare-media captions --media-metadata-by-extension
        energon-grain prepare-media captions --media-metadata-by-glob '*.jpg,*.png'
    """
    media = MediaFilterConfig.parse(media_metadata_by_glob, media_metadata_by_header, media_metadata_by_extension)
    location = located(path)
    _check_kind(location, _kind_of(location))
    with running(runner, ray_address) as executor, ProgressBar("Reading headers", shown=progress) as bar:
        report = prepare_it(location, media, num_workers=num_workers, progress=shown_by(bar), executor=executor)
    if isinstance(report, PrepareReport):
        held = f"{counted(report.samples, 'sample')} in {counted(len(report.shard_counts), 'shard')}"
        document: object = with_samples(report)
    else:
        held, document = counted(report.files, "file"), report
    done = f"Read headers of {report.root}: {held}, {format_bytes(report.size_bytes)}, in {report.elapsed_s:.2f} s."
    return Answer(document=document, lines=[done, *_lines_of_media(report.media)], is_report=True)


def _lines_of_media(media: MediaReport | None) -> Iterator[str]:
    if media is None:
        return
    yield f"  metadata of {counted(media.found, 'file')}"
    if media.failures:
        more = "" if media.failures == len(media.failed) else ", such as these"
        which = f"{counted(media.failures, 'file')} with a damaged header"
        yield "  " + note(f"no metadata of {which}{more}:")
        yield from (f"    {each}" for each in media.failed)


def _plan_of_index(kind: Kind, path: str) -> Answer:
    if kind.index_plan is None:
        raise ConfigError(f"{path}: --dry-run is not supported for {kind.described}. Leave it out.")
    plan = kind.index_plan(path)
    return Answer(document=plan, lines=plan.lines())


def _index(index: Callable[[str, IndexProgress], Described], path: str, progress: bool) -> Answer:
    """Index data without splits and sample types."""
    with ProgressBar("Indexing", shown=progress) as bar:
        report = index(path, lambda done, total, samples: bar.advance_to(done, total, f"{samples:,} samples"))
    return Answer(document=report, lines=report.lines(), is_report=True)


def _plan_of_metadataset(path: str) -> Answer:

    plans = plan_joins(find_joins(path))
    what = "index its joins, and remove indices that no join uses" if plans else "it has no joins"
    lines = [f"Plan: {path}: {what}. Nothing was written.", *(line for plan in plans for line in plan.lines())]
    return Answer(document=plans, lines=lines)


def _metadataset(path: str, progress: bool) -> Answer:
    """Index the joins of a metadataset."""
    with ProgressBar("Joining", shown=progress) as bar:
        report = prepare_metadataset(
            path,
            progress=lambda place, keys, total: bar.advance_to(keys, total, f"{keys:,}/{total:,} keys, {place}"),
        )
    return Answer(document=report, lines=_lines_of_joins(path, report), is_report=True)


def _lines_of_joins(path: str, report: MetadatasetReport) -> Iterator[str]:
    if not report.joins:
        yield f"{path}: no joins, nothing to prepare."
    for made in report.joins:
        done = "joined" if made.built else "up to date"
        yield f"{', '.join(made.places)}: {counted(made.rows, 'row')} {done}, in {made.folder.name}"
        if made.skipped:
            yield f"  {counted(made.skipped, 'sample')} of the first dataset without a row"
        for dataset, missing in made.missing.items():
            if missing:
                yield f"  {counted(missing, 'row')} without a sample of {dataset}"
    yield from (f"  removed the index {name}, which no join uses" for name in report.removed)
    yield from (f"  {note(each)}" for each in report.notes)
    yield f"Prepared {path} in {report.elapsed_s:.2f} s."


def _kind_of(path: str) -> Kind | None:
    """The kind of data at a path; None: a URL whose text does not tell. Makes no request."""
    return kind_by_name(path) if is_url(path) else kind_at(path)


def _check_kind(path: str, kind: Kind | None) -> None:
    if is_url(path):
        return
    if os.path.isfile(path):
        taken = "expected the folder with the tars, a .jsonl file, or a metadataset (.yaml)."
        raise ConfigError(f"{path}: {hint_at(path) or taken}")
    if not os.path.isdir(path):
        raise DatasetNotFoundError(no_such_path(path, "folder"))
    if kind is not None and kind.open is not None:
        raise RefusedError(f"{path}: {kind.described} is read directly: there is nothing to prepare.")


def _parse_field_map(text: str) -> dict[str, str]:
    import json

    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f'--field-map {text!r} is not JSON ({error}): write \'{{"image": "jpg"}}\'.') from error
    if not isinstance(fields, dict):
        raise ConfigError(f'--field-map {text!r} is not a mapping: write \'{{"image": "jpg"}}\'.')
    return fields


def _lines(report: PrepareReport, wants_yaml: str | None, append: bool) -> Iterator[str]:

    yield (
        f"Prepared {report.root}: {counted(report.samples, 'sample')} in {counted(len(report.shard_counts), 'shard')}, "
        f"{format_bytes(report.size_bytes)}, in {report.elapsed_s:.2f} s."
    )
    if report.shards_reused:
        why = "are in the index already" if append else "had been scanned by an interrupted run"
        yield f"  {counted(report.shards_reused, 'shard')} {why}."
    for name, shards in report.split_parts.items():
        yield f"  {name}: {counted(report.samples_of(name), 'sample')} in {counted(len(shards), 'shard')}"
    yield f"  parts: {_some(report.part_names)}"
    yield from _lines_of_media(report.media)
    yield from (f"  {note(each)}" for each in report.notes)
    if wants_yaml is not None and not any(path.endswith(f"/{wants_yaml}") for path in report.written):
        kept = (open_folder(report.root).local / ".nv-meta" / wants_yaml).exists()
        ways = "Prepare again with --force-overwrite, and --sample-type with --field-map, or --crude."
        yield f"  {wants_yaml}: the existing file was kept." if kept else f"  {wants_yaml}: not written. {ways}"


def _some(parts: Sequence[str]) -> str:
    return ", ".join([*parts[:_SHOWN_PARTS], *(["…"] if len(parts) > _SHOWN_PARTS else [])])


@contextlib.contextmanager
def _answers(
    context: typer.Context, location: str, shards: Sequence[str], records: RecordEncoding | None
) -> Generator[None]:
    """If no user can answer the questions, raise an error with the command that needs no answers."""
    try:
        yield
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        typer.echo()  # ends the line of the question
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
    """The content of the `json` part of the first sample that has one."""
    import json

    for _, _, text in preview_samples(join(root, shard), scan, records=records):
        if text is not None:
            return json.loads(text)
    return None


def _default_ratio(shard_count: int) -> str:
    return "8,1,1" if shard_count >= 3 else "1,0,0"


def _ask_split_ratio(shard_count: int) -> dict[str, float]:
    """Ask for the split ratio until `shard_count` shards can be split by it."""
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
    """Show the first samples, then ask for the sample type (unless an option gives it) and the field map."""
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
    """Ask for the sample type. "" takes the proposal, with its field map."""
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
    """The sample type, chosen by its number or name. Raises ConfigError."""
    if answer.isdecimal() and int(answer) < len(names):
        return names[int(answer)]
    if answer not in ("", _CRUDE):
        own_sample_type(answer)
        find_sample_type(answer)
    return answer


def _ask_field_map(sample_type: str, parts: Sequence[str]) -> DatasetDefinition | None:

    fields = data_fields(find_sample_type(sample_type))
    typer.echo(
        f"Which part fills each field of {class_reference(sample_type)['__class__']}? Write a part, several parts to "
        f"take the first that a sample has (jpg,png), or a value in JSON (json[captions][0])."
    )
    while True:
        answers = {field.name: _ask_field(field, parts) for field in fields}
        field_map = {name: answer for name, answer in answers.items() if answer is not None}
        try:
            return define_dataset(sample_type=sample_type, field_map=field_map)
        except FieldMapError as error:
            typer.echo(f"{error}")


def _ask_field(field: SampleField, parts: Sequence[str]) -> str | None:
    """Ask for the expression of one field. None leaves an optional field out."""
    proposal = propose_expression(field.name, parts)
    skip = "" if field.required else f", '{_LEAVE_OUT}' to leave it at {field.default}"
    while True:
        default = proposal or ("" if field.required else _LEAVE_OUT)
        asked = f"  {field.name} ({field.annotation}{skip})"
        answer: str = typer.prompt(asked, default=default, show_default=bool(default)).strip()
        if answer == _LEAVE_OUT and not field.required:
            return None
        problem = _wrong_answer(field, answer, parts)
        if problem is None:
            return answer
        typer.echo(f"    {problem} Parts: {_some(parts)}.")


def _wrong_answer(field: SampleField, answer: str, parts: Sequence[str]) -> str | None:
    if not answer:
        return f"{field.name} is required, and no part fits it by name."
    unknown = [option.part for option in parse_expression(answer) if option.part not in {*parts, *PSEUDO_PARTS}]
    return f"There is no part {unknown[0]!r}." if unknown else None
