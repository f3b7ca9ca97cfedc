# SPDX-License-Identifier: Apache-2.0
"""Options and progress of the commands that work in parallel: worker processes or Ray tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from energon_grain.errors import ConfigError
from energon_grain.prepare.executors import RayExecutor
from energon_grain.words import format_bytes

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from energon_grain.cli.terminal import ProgressBar
    from energon_grain.prepare.scan import PrepareProgress

_PANEL = "How it runs"


def option(text: str, panel: str | None = None, **more: Any) -> Any:
    """An option with this description."""
    return typer.Option(help=text, rich_help_panel=panel, **more)


def flag(name: str, text: str, panel: str | None = None) -> Any:
    """A flag without an opposite."""
    return typer.Option(name, help=text, rich_help_panel=panel)


_WORKERS = "Most processes to use; 0: none. Default: one per core. With Ray: tasks in flight."
Workers = Annotated[int | None, option(_WORKERS, _PANEL, min=0)]
_RUNNER = "Work in processes of this machine, or in tasks of a running Ray cluster."
Runner = Annotated[Literal["processes", "ray"], option(_RUNNER, _PANEL)]
_CLUSTER = "Ray cluster, as HOST:PORT. Default: auto, the one that Ray finds."
RayAddress = Annotated[str | None, option(_CLUSTER, _PANEL)]
Progress = Annotated[bool, option("Show a progress bar on terminals.", _PANEL)]


def running(runner: str, ray_address: str | None) -> contextlib.AbstractContextManager[Executor | None]:
    """The executor that the options name; None: processes of this machine. Raises ConfigError."""
    if runner == "processes":
        if ray_address is not None:
            raise ConfigError("--ray-address is for --runner ray.")
        return contextlib.nullcontext()
    return RayExecutor(ray_address or "auto")


def shown_by(bar: ProgressBar) -> Callable[[PrepareProgress], None]:
    """Show progress in bytes if they are known (shards differ in size), else in shards."""

    def show(now: PrepareProgress) -> None:
        of = f"/{now.shards_total:,}" if now.shards_total else ""
        detail = f"{now.shards_done:,}{of} shards, {now.samples:,} samples"
        if now.stage == "scan" and now.bytes_done:
            detail += f", {format_bytes(now.bytes_done / bar.elapsed_s)}/s"
        labels = {"write": "Writing", "index": "Writing the index", "commit": "Putting it in place"}
        done, total = (now.bytes_done, now.bytes_total) if now.bytes_total else (now.shards_done, now.shards_total)
        bar.advance_to(done, total, detail, labels.get(now.stage))

    return show
