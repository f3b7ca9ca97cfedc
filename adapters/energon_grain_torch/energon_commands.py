# SPDX-License-Identifier: Apache-2.0
"""Energon's commands for programs that import them from `megatron.energon.tools`, with their arguments and exits.

Commands that this library also has are its own. Served through `as_megatron_energon`, and not used otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import torch

import energon_grain_torch
from energon_grain.errors import EmptyDatasetError, EnergonGrainError
from energon_grain.stream.cursor import merge_cursors
from energon_grain_torch.worker_config import WorkerConfig

_STATE = "dataloader_state_dict"
_SHOWN = 500


class Command:
    """A command with the interface that `click` and its test runner use. Errors exit with status 1."""

    def __init__(self, name: str, run: Callable[[Sequence[str]], None]) -> None:
        self.name = name
        self._run = run

    def main(self, args: Sequence[str] | None = None, **_: Any) -> NoReturn:
        """Run it with these arguments, or those of the program, and exit."""
        try:
            self._run(sys.argv[1:] if args is None else args)
        except (EnergonGrainError, OSError) as error:
            print(f"Error: {error}", file=sys.stderr)
            raise SystemExit(1) from error
        raise SystemExit(0)

    __call__ = main


def _ours(name: str, *, last_line: str = "") -> Command:
    """Return a command of `energon-grain`, with the last line of Energon's command, which scripts look for."""

    def run(arguments: Sequence[str]) -> None:
        app: Any = importlib.import_module("energon_grain.cli.app").app
        try:
            app([*([name] if name else []), *arguments], prog_name="energon-grain")
        except SystemExit as end:
            if end.code not in (0, None):
                raise
        if last_line:
            print(last_line)

    return Command(name, run)


def _preview(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="preview", description="Show the samples of a dataset in order.")
    parser.add_argument("path")
    parser.add_argument("--split-parts", default="train,val,test", help="parts to show (%(default)s)")
    parser.add_argument("--dataset-config", default="dataset.yaml", help="configuration file (%(default)s)")
    options = parser.parse_args(arguments)
    for part in options.split_parts.split(","):
        try:
            dataset = energon_grain_torch.get_val_dataset(
                options.path,
                split_part=part,
                batch_size=None,
                dataset_config=options.dataset_config,
                worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            )
            for number, sample in enumerate(dataset):
                print(f"Sample {number} of {part}:")
                _show(sample)
                print("Continue? [y/N]: ", end="", flush=True)
                if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                    return
        except EmptyDatasetError as error:
            print(error)


def _show(sample: Any) -> None:
    names = [field.name for field in dataclasses.fields(sample)] if dataclasses.is_dataclass(sample) else None
    items: Any = cast("Any", sample).items() if names is None else ((name, getattr(sample, name)) for name in names)
    for name, value in items:
        shown = f"shape {tuple(value.shape)}, {value.dtype}" if hasattr(value, "shape") else repr(value)
        print(f"  {name} ({type(value)}): {shown[:_SHOWN]}")


def _redistribute(arguments: Sequence[str]) -> None:
    """Write one state for all ranks to each file, because any number of ranks can restore it."""
    parser = argparse.ArgumentParser(prog="redist", description="Rewrite the states of all ranks for another number.")
    parser.add_argument("--new-world-size", type=int, required=True, help="new number of ranks")
    parser.add_argument("input_files", nargs="+", type=Path, help="files that each rank saved with torch.save")
    parser.add_argument("output_path", type=Path, help="folder of the new files")
    options = parser.parse_args(arguments)
    saved: list[Any] = [torch.load(file, weights_only=False) for file in options.input_files]
    wrapped = isinstance(saved[0], dict) and _STATE in saved[0]
    merged: Any = merge_cursors([each[_STATE] if wrapped else each for each in saved])
    before, digits, after = re.fullmatch(r"(.*?)(\d*)(\D*)", options.input_files[0].name).groups()  # pyright: ignore
    options.output_path.mkdir(parents=True, exist_ok=True)
    for rank in range(options.new_world_size):
        target = options.output_path / f"{before}{rank:0{len(digits) or 1}}{after}"
        torch.save({**saved[0], _STATE: merged} if wrapped else merged, target)
    print(f"Wrote {options.new_world_size} files to {options.output_path}.")


def _analyze_debug(_: Sequence[str]) -> NoReturn:
    raise EnergonGrainError(
        "analyze-debug reads logs of Energon's loaders, which this library does not write. `energon-grain which` and "
        "`loader.which(step)` name the samples of any step, and `energon-grain info --plot` shows the mixture"
    )


analyze_debug = Command("analyze-debug", _analyze_debug)
main = _ours("")
prepare = _ours("prepare", last_line="Done")
info = _ours("info")
prepare_media = _ours("prepare-media", last_line="Done")
lint = _ours("lint")
preview = Command("preview", _preview)
command_redist = Command("redist", _redistribute)
