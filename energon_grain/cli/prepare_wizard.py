"""What `energon-grain prepare` asks: overwrite, split, sample type, field map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from energon_grain.cli.own_modules import own_sample_type
from energon_grain.errors import ConfigError, FieldMapError
from energon_grain.formats.nv_meta import dataset_kind
from energon_grain.prepare.dataset_definition import (
    CRUDE_CLASS,
    SAMPLE_TYPES,
    DatasetDefinition,
    SampleField,
    class_reference,
    data_fields,
    define_dataset,
    find_sample_type,
    preview_samples,
    propose_expression,
)
from energon_grain.prepare.listing import parse_ratio, shards_per_part
from energon_grain.prepare.scan import ScannedDataset
from energon_grain.storage.location import join
from energon_grain.transforms.field_map import PSEUDO_PARTS, parse_expression

_SHOWN_PARTS = 10
_LEAVE_OUT = "-"


def ask_overwrite(root: Path) -> bool:
    """Ask whether to prepare a prepared dataset again; a no ends the program. False where it is not prepared."""
    if not dataset_kind(root).has_shards:
        return False
    if not typer.confirm("The dataset is prepared already. Prepare it again, and replace its splits?"):
        raise typer.Exit(1)
    return True


def ask_split_ratio(shard_count: int) -> dict[str, float]:
    """Ask for the split until it is one that `shard_count` shards can be dealt to."""
    default = "8,1,1" if shard_count >= 3 else "1,0,0"
    while True:
        answer: str = typer.prompt("Ratio of train, val and test", default=default)
        try:
            ratio = parse_ratio(answer)
            shards_per_part(shard_count, ratio)
        except ConfigError as error:
            typer.echo(f"{error}")
        else:
            return ratio


def ask_definition(scanned: ScannedDataset, sample_type: str | None = None) -> DatasetDefinition | None:
    """Show the first samples, then ask for sample type (unless it is given) and field map."""
    _show_samples(scanned)
    parts = scanned.part_names
    typer.echo(f"Parts: {', '.join(parts[:_SHOWN_PARTS])}{' and more' if len(parts) > _SHOWN_PARTS else ''}")
    if sample_type is None:
        if not typer.confirm("Choose a sample type now (writes dataset.yaml)?", default=True):
            return None
        sample_type = _ask_sample_type()
    if sample_type == CRUDE_CLASS:
        typer.echo("Samples will be plain dicts. Give your task encoder a cooker for them.")
        return define_dataset(sample_type=None, field_map=None, crude=True)
    find_sample_type(sample_type)
    return _ask_field_map(sample_type, parts)


def _show_samples(scanned: ScannedDataset) -> None:
    task, scan = scanned.shards[0].task, next(scanned.scans())
    location = join(scanned.root, task.name)
    for key, sizes, json_text in preview_samples(location, scan, records=task.records):
        parts = ", ".join(f"{name} ({size:,} bytes)" for name, size in sizes.items())
        typer.echo(f"Sample {key!r} of {task.name}: {parts}")
        if json_text is not None:
            typer.echo(json_text)


def _ask_sample_type() -> str:
    names = [*SAMPLE_TYPES, CRUDE_CLASS]
    for number, name in enumerate(names):
        fields = ", ".join(field.name for field in data_fields(SAMPLE_TYPES[name])) if name in SAMPLE_TYPES else ""
        typer.echo(f"{number:3}. {name:28} {fields or 'plain dicts, to be cooked by the program'}")
    while True:
        answer: str = typer.prompt("Number or name of the sample type")
        if answer.isdecimal() and int(answer) < len(names):
            return names[int(answer)]
        try:
            return answer if answer == CRUDE_CLASS else _checked_name(answer)
        except ConfigError as error:
            typer.echo(f"{error}")


def _checked_name(name: str) -> str:
    own_sample_type(name)
    find_sample_type(name)
    return name


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
        typer.echo(f"    There is no part {unknown[0]!r}. There are {', '.join(parts[:_SHOWN_PARTS])}.")
