"""The folder that a conversion writes: what is done, what is left, and the files beside the data.

`.nv-meta/.convert/` exists from the first moment to the last. Its `plan.json` says what is converted into what, so that
the same command goes on after a kill and another one is refused; beside it, a small file for each shard says that it
was written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from energon_grain.conversion.report import Compression, Container
from energon_grain.conversion.shard_conversion import TEMPORARY, WRITTEN, WrittenShard, record_name
from energon_grain.errors import ConfigError, RefusedError, SplitError
from energon_grain.formats.array_record_encoding import encode_records_file
from energon_grain.formats.nv_meta import (
    COMPATIBLE_ENERGON_VERSION,
    INFO_YAML,
    META_FOLDER,
    RECORD_SUFFIX,
    RECORDS_JSON,
    DatasetInfo,
    write_info,
)
from energon_grain.formats.splits import SplitConfig, excluded_sample, read_split_config, write_split_config
from energon_grain.forms import Form
from energon_grain.storage.atomic import atomic_write_bytes, remove_temporaries

CONVERT_FOLDER = f"{META_FOLDER}/.convert"
SUFFIXES: dict[Container, str] = {"tar": ".tar", "array-record": RECORD_SUFFIX}
_PLAN = "plan.json"
_COPIED = (".yaml", ".yml", ".py", ".json")
_NOT_COPIED = (INFO_YAML, RECORDS_JSON)


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must be the same for a conversion to go on: which samples, in shards of which names, into what."""

    content_id: str
    shards: tuple[str, ...]
    container: Container
    compression: Compression


_PLAN_FORM = Form(Plan)


class TargetFolder:
    """The folder of the new dataset.

    Args:
        root: The folder: new, empty, or what an interrupted conversion with the same plan left.
        plan: Of the conversion.

    Raises:
        RefusedError: Something else is there.
        ConfigError: Two shards would get the same name.
    """

    def __init__(self, root: Path, plan: Plan) -> None:
        self.root, self._plan = root, plan
        self._check_names()
        self._notes = root / CONVERT_FOLDER
        stored = self._notes / _PLAN
        if stored.exists():
            self._check_plan(stored)
        elif not (self._notes.is_dir() or self._is_free()):
            raise RefusedError(
                f"{root}: is not empty. A conversion writes into a new or empty folder, or goes on with an interrupted "
                f"conversion of the same dataset"
            )
        else:
            self._notes.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(stored, msgspec.json.encode(plan))

    def _is_free(self) -> bool:
        """Whether there is nothing, or no more than a conversion leaves that was killed right at its beginning."""
        if not self.root.is_dir():
            return not self.root.exists()
        return not any(path != self._notes.parent or any(path.iterdir()) for path in self.root.iterdir())

    def _check_names(self) -> None:
        taken: dict[str, str] = {}
        for shard in self._plan.shards:
            other = taken.setdefault(self.renamed(shard), shard)
            if other != shard:
                raise ConfigError(
                    f"the shards {other!r} and {shard!r} would both become {self.renamed(shard)!r}; rename one of "
                    f"them, and prepare the dataset again"
                )

    def _check_plan(self, stored: Path) -> None:
        try:
            found = _PLAN_FORM.from_json(stored.read_bytes())
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{stored}: is no plan of a conversion ({error}); remove {self.root}") from error
        if found != self._plan:
            differs = [name for name in Plan.__struct_fields__ if getattr(found, name) != getattr(self._plan, name)]
            raise RefusedError(
                f"{self.root}: holds an interrupted conversion with other settings or of another dataset ("
                f"{', '.join(differs)} differ); finish that one, or remove the folder"
            )

    def renamed(self, shard: str) -> str:
        """The name of the new shard for an old one."""
        new = SUFFIXES[self._plan.container]
        (old,) = (suffix for suffix in SUFFIXES.values() if suffix != new)
        return shard.removesuffix(old) + new

    def record(self, shard: str) -> Path:
        """Where it is noted that an old shard was converted."""
        return self._notes / record_name(shard)

    def written(self, shard: str, samples: int, *, verified: bool) -> WrittenShard | None:
        """What is known of the new shard for an old one; None where it must be written (again)."""
        try:
            found = WRITTEN.from_json(self.record(shard).read_bytes())
            size = (self.root / self.renamed(shard)).stat().st_size
        except (OSError, msgspec.MsgspecError):
            return None
        fits = found.size_bytes == size and found.samples == samples and (found.verified or not verified)
        return found if fits else None

    def remove_leftovers(self) -> None:
        """Remove what a killed process was writing: shards, and files beside the data."""
        for path in self.root.rglob(f".*{TEMPORARY}"):
            path.unlink(missing_ok=True)
        remove_temporaries(self.root / META_FOLDER, ".*.tmp")

    def write_meta(self, source: Path, counts: dict[str, int]) -> None:
        """Write what says how the new shards are read: configuration and splits of the old ones, and their numbers.

        Args:
            source: Folder with the `.nv-meta` of the old dataset.
            counts: Samples of each old shard.
        """
        meta = self.root / META_FOLDER
        for path in sorted((source / META_FOLDER).iterdir()):
            copied = path.suffix in _COPIED and path.is_file() and not path.name.startswith(".")
            if not copied or path.name in _NOT_COPIED:
                continue
            try:
                splits = read_split_config(source, path.name, shards=counts)
            except SplitError:
                shutil.copyfile(path, meta / path.name)
            else:
                write_split_config(meta / path.name, self._renamed_splits(splits, counts))
        if self._plan.container == "array-record":
            atomic_write_bytes(meta / RECORDS_JSON, encode_records_file("msgpack"))
        info = {self.renamed(shard): count for shard, count in counts.items()}
        write_info(self.root, DatasetInfo(shard_counts=info, energon_version=COMPATIBLE_ENERGON_VERSION))

    def _renamed_splits(self, splits: SplitConfig, counts: dict[str, int]) -> SplitConfig:
        parts = {
            part: tuple(self.renamed(shard) if shard in counts else shard for shard in shards)
            for part, shards in splits.split_parts.items()
        }
        exclude = tuple(self._renamed_exclude(each, counts) for each in splits.exclude)
        return SplitConfig(split_parts=parts, exclude=exclude)

    def _renamed_exclude(self, exclude: str, counts: dict[str, int]) -> str:
        if exclude in counts:
            return self.renamed(exclude)
        sample = excluded_sample(exclude, DatasetInfo(shard_counts=counts))
        return exclude if sample is None else f"{self.renamed(sample[0])}/{sample[1]}"

    def finish(self) -> None:
        """Forget the conversion: the plan after the notes on shards, and the folder, by which it is known, last."""
        plan = self._notes / _PLAN
        for path in self._notes.iterdir():
            if path != plan:
                path.unlink()
        plan.unlink()
        self._notes.rmdir()
