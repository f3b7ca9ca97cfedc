# SPDX-License-Identifier: Apache-2.0
"""The options that describe a run (the settings that decide its order), and the dataset that they build."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

import typer

from energon_grain.cli.terminal import Answer, own_modules
from energon_grain.datasets.dataset import SavableDataset
from energon_grain.errors import ConfigError
from energon_grain.formats.class_ref import imported
from energon_grain.get_datasets import get_train_dataset, get_val_dataset
from energon_grain.stream.worker_config import WorkerConfig
from energon_grain.task_encoder import TaskEncoder

_PANEL = "The run"


def _option(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=_PANEL, **more)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The arguments of `get_train_dataset` or `get_val_dataset` that decide the order of samples.

    Each attribute is an option of the commands that `of_a_run` decorates, with its description.
    """

    split_part: Annotated[str | None, _option("Split part. Default: train, or val with --validation.")] = None
    validation: Annotated[
        bool,
        typer.Option(
            "--validation",
            help="A run of get_val_dataset: samples in order, one pass at a time.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    world_size: Annotated[int, _option("Number of hosts.", min=1)] = 1
    seed: Annotated[int, _option("Seed of every random choice.")] = 0
    seed_offset: Annotated[int, _option("seed_offset of WorkerConfig, mixed into the seed.")] = 0
    lanes: Annotated[
        int | None, _option("Number of interleaved sub-streams. Default: 48, or lcm(48, hosts).", min=1)
    ] = None
    shuffle_buffer_size: Annotated[
        int | None,
        _option("With --max-samples-per-sequence: mix at least about this many samples. Default: full shuffle.", min=0),
    ] = None
    max_samples_per_sequence: Annotated[
        int | None,
        _option("Read this many consecutive samples as one block. Default: 1; in stores, about 4 MiB.", min=1),
    ] = None
    parallel_shard_iters: Annotated[
        int | None, _option("Blocks that mix in a lane, if batches are formed inside lanes. Default: 16.", min=1)
    ] = None
    shuffle_over_epochs_multiplier: Annotated[
        str, _option("Passes over the data that are shuffled as one; -1: with replacement; none: keep the order.")
    ] = "1"
    virtual_epoch_length: Annotated[int, _option("End an epoch after this many batches; 0: never.", min=0)] = 0
    repeat: Annotated[bool, _option("Repeat the data without end, or make one pass at a time.")] = True
    last_batch: Annotated[
        Literal["keep", "drop", "pad"] | None,
        _option("Keep, drop or pad an incomplete last batch. Default: keep on one host, pad on several."),
    ] = None
    limit: Annotated[int | None, _option("With --validation: batches of each pass.", min=1)] = None
    packing_buffer_size: Annotated[
        int | None, _option("Candidates in each lane from which the task encoder packs samples.", min=1)
    ] = None
    subset: Annotated[str | None, _option("Range of samples, as 0%,50% or 100,200.")] = None
    where: Annotated[str | None, _option("Condition on columns, as 'tokens >= 16'.")] = None
    dataset_config: Annotated[str, _option("Name of the dataset's YAML file in .nv-meta.")] = "dataset.yaml"
    split_config: Annotated[
        str | None, _option("Name of the split file in .nv-meta. Default: split.yaml, or as the dataset's file says.")
    ] = None
    split_ratio: Annotated[
        str | None, _option("How to split tars that are not prepared, as 8,1,1 or train:0.9,val:0.1.")
    ] = None
    task_encoder: Annotated[
        str | None, _option("Task encoder of the run, as module:Class; it is imported and called without arguments.")
    ] = None
    trust_module: Annotated[
        list[str] | None, _option("Module whose sample types and functions may be imported. Repeatable.")
    ] = None

    def dataset(
        self,
        path: str,
        *,
        batch_size: int | None,
        task_encoder: TaskEncoder | None = None,
        worker_type: Literal["thread", "process"] = "thread",
    ) -> SavableDataset:
        """Build the dataset of the run for host 0. `task_encoder` replaces the one of the run. Raises ConfigError."""
        settings: dict[str, Any] = {
            # The commands compute the samples of every host.
            "worker_config": WorkerConfig(
                rank=0,
                world_size=self.world_size,
                num_workers=0,
                worker_type=worker_type,
                seed_offset=self.seed_offset,
                any_host=bool,
            ),
            "batch_size": batch_size,
            "packing_buffer_size": self.packing_buffer_size,
            "last_batch": self.last_batch,
            "task_encoder": task_encoder or (self.task_encoder and own_task_encoder(self.task_encoder)),
            "seed": self.seed,
            "lanes": self.lanes,
            "subset": self._range(),
            "where": self.where,
            "dataset_config": self.dataset_config,
            "split_config": self.split_config,
            "split_ratio": self.split_ratio,
            "trusted_modules": own_modules(self.trust_module),
        }
        if self.validation:
            self._refuse_training()
            return get_val_dataset(path, split_part=self.split_part or "val", limit=self.limit, **settings)
        if self.limit is not None:
            raise ConfigError("--limit applies to validation only: add --validation")
        return get_train_dataset(
            path,
            split_part=self.split_part or "train",
            shuffle_over_epochs_multiplier=self._multiplier(),
            **{name: getattr(self, name) for name in _OF_TRAINING if name != "shuffle_over_epochs_multiplier"},
            **settings,
        )

    def _refuse_training(self) -> None:
        for name in _OF_TRAINING:
            if getattr(self, name) != _DEFAULTS[name]:
                raise ConfigError(f"--{name.replace('_', '-')} applies to training only: remove it or --validation")

    def _range(self) -> list[int | str] | None:
        if self.subset is None:
            return None
        bounds = [bound.strip() for bound in self.subset.strip("[] ").split(",")]
        return [int(bound) if bound.isdecimal() else bound for bound in bounds]

    def _multiplier(self) -> int | None:
        written = self.shuffle_over_epochs_multiplier
        if written == "none":
            return None
        try:
            return int(written)
        except ValueError:
            raise ConfigError(
                f"--shuffle-over-epochs-multiplier {written}: expected a number of passes, -1 or none"
            ) from None


_OF_TRAINING = (
    *("shuffle_buffer_size", "max_samples_per_sequence", "parallel_shard_iters", "shuffle_over_epochs_multiplier"),
    *("virtual_epoch_length", "repeat"),
)
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Run)}


def options_of(kind: type[Any], parameter: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Decorate a command: each field of a dataclass becomes an option, in place of the parameter for the dataclass."""
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}

    def with_options(command: Callable[..., Answer]) -> Callable[..., Answer]:
        @functools.wraps(command)
        def call(**given: Any) -> Answer:
            return command(**{parameter: kind(**{name: given.pop(name) for name in defaults})}, **given)

        hints = get_type_hints(command, include_extras=True)
        own = [each for each in inspect.signature(command).parameters.values() if each.name != parameter]
        parameters = [each.replace(annotation=hints[each.name]) for each in own]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
            for name, annotation in get_type_hints(kind, include_extras=True).items()
        ]
        last = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        vars(call)["__signature__"] = inspect.Signature(last, return_annotation=Answer)
        call.__annotations__ = {each.name: each.annotation for each in last}
        return call

    return with_options


of_a_run = options_of(Run, "run")


def own_task_encoder(named: str) -> TaskEncoder:
    """Import a task encoder, `package.module:Class`, and call it without arguments. Raises ConfigError."""
    own_modules([named.partition(":")[0]])
    found = imported(named, f"--task-encoder {named}", "Class")
    encoder = found() if isinstance(found, type) else found
    if not isinstance(encoder, TaskEncoder):
        raise ConfigError(f"--task-encoder {named}: expected a TaskEncoder, got {type(encoder).__name__}")
    return encoder
