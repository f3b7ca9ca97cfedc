"""What a split file says that matters for a move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from energon_grain.errors import EmptyDatasetError, SplitError
from energon_grain.formats.nv_meta import META_FOLDER, DatasetInfo
from energon_grain.formats.splits import DEFAULT_SPLIT_CONFIG, read_split_config, select_shards
from energon_grain.migration.finding import Finding, refusal

_LISTED = 3


def split_findings(root: Path, info: DatasetInfo, name: str | None) -> Iterator[Finding]:
    """Compare the split file `name` of a dataset (None: the default one) with its shards."""
    where = f"{root / META_FOLDER / (name or DEFAULT_SPLIT_CONFIG)}"
    try:
        config = read_split_config(root, name, shards=info.shard_counts)
    except SplitError as error:
        yield refusal(where, error)
        return
    excluded: set[tuple[str, str]] = set()
    unmatched: dict[str, None] = {}
    for part in config.split_parts:
        place = f"{where}: $.split_parts.{part}"
        try:
            selected = select_shards(config, part, info)
        except EmptyDatasetError as error:
            yield Finding(
                severity="note",
                where=place,
                what=str(error),
                here="refused when it is loaded, as in Energon; other parts are not affected",
            )
            continue
        except SplitError as error:
            yield refusal(place, error, energon="a KeyError when the part is loaded")
            continue
        excluded.update(selected.excluded_samples)
        unmatched.update(dict.fromkeys(selected.unmatched_excludes))
    if excluded:
        yield Finding(
            severity="differs",
            where=f"{where}: $.exclude",
            what=f"{len(excluded):,} samples are excluded one by one.",
            energon="counts them in lengths, in the shares of epochized blends and in who reads what, and skips them",
            here="they are not there: lengths and shares are those of what is left",
        )
    if unmatched:
        yield Finding(
            severity="note",
            where=f"{where}: $.exclude",
            what=f"Excludes that name no shard of the dataset: {len(unmatched):,}, such as {next(iter(unmatched))!r}.",
            here="nothing is excluded by them, as in Energon",
            advice="correct or remove them",
        )
    listed = {shard for shards in config.split_parts.values() for shard in shards} | set(config.exclude)
    nowhere = [shard for shard in info.shard_counts if shard not in listed]
    if nowhere:
        names = ", ".join(nowhere[:_LISTED]) + (", …" if len(nowhere) > _LISTED else "")
        yield Finding(
            severity="note",
            where=where,
            what=f"{len(nowhere):,} shards are in no split part: {names}.",
            energon="never reads them; its `prepare` can lose the last shard to a ratio such as 7,2,1",
            here="never reads them either; our `prepare` cuts ratios exactly",
            advice="add them to a split part if that was not meant",
        )
