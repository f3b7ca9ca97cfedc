# SPDX-License-Identifier: Apache-2.0
"""What loaders of all backends have in common: a stream, its state, the processes of all hosts, and being watched."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self, TextIO

from energon_grain.errors import EnergonGrainError, StateError, public, shorten
from energon_grain.host_processes import HostProcesses, broadcast_state, gather_cursor
from energon_grain.samples.subscripts import Item, OneSubscript
from energon_grain.stream.cursor import Cursor, merge_cursors
from energon_grain.stream.run import StepSamples
from energon_grain.stream.spec import names_of_leaves
from energon_grain.stream.stream import OnChange
from energon_grain.watch.loader_stats import LoaderStats
from energon_grain.watch.progress import ProgressLine
from energon_grain.watch.stream import Stream
from energon_grain.watch.watching import Watch


@public
class StreamLoader(OneSubscript[Item]):
    """Batches of one host, with state: the part of a loader that does not depend on the framework.

    A loop that was left by `break` continues where it stopped; after the end of a pass the next `iter` begins the next
    one (for validation: the same one). `next` in between raises StopIteration.

    A backend sets `_stream` and `_framework`, and says by `_processes` how hosts reach each other.
    """

    _stream: Stream
    _framework: ClassVar[str]

    def _processes(self) -> HostProcesses | None:
        """Processes of all hosts; None: the program did not connect them."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        iter(self._stream)
        return self

    def __next__(self) -> Item:
        try:
            return next(self._stream)
        except EnergonGrainError as error:
            shorten(error)
            raise

    def __len__(self) -> int:
        """Steps per host of the current pass; of one pass over the data where the stream is endless."""
        return len(self._stream)

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} has no batches by number, it goes on from one to the next: iterate over it, by itself (it needs "
            f"no other loader around it). `which(step)` says what a step holds, and `BatchMapDataset`, where Grain is "
            f"installed, has batches by number. For torch.utils.data.DataLoader, take what get_train_dataset of "
            f"energon_grain_torch returned"
        )

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({names_of_leaves(leaf.key[:-1] for leaf in self._stream.spec.leaves)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied, it owns threads and open files: send the dataset, make a loader of "
            f"it there, and give it the state"
        )

    def progress(self, *, every_s: float = 10.0, file: TextIO | None = None) -> Iterator[Item]:
        """The same batches as `for batch in loader`, with a line that says how far the loop is, and how fast.

        It tells the step and the steps of the pass (of endless streams how often the data came by), samples a second of
        this host, the share of the time for which the loop waited for data, and what is left. Host 0 alone shows it.
        The loader is used as by any loop: its state is that behind the last batch that the loop got.

        Args:
            every_s: Where `file` is no terminal, a line at most that often, in seconds.
            file: Where to write; default: stderr.
        """
        iter(self)
        line = ProgressLine(self._stream, every_s, sys.stderr if file is None else file)
        try:
            while True:
                began = time.perf_counter()
                try:
                    batch = next(self)
                except StopIteration:
                    return
                except EnergonGrainError as error:
                    shorten(error)
                    raise
                line.took(time.perf_counter() - began)
                yield batch
                del batch  # or it would live until the next one is made
        finally:
            line.end()

    @property
    def stream(self) -> Stream:
        """What runs underneath."""
        return self._stream

    def close(self) -> None:
        """End threads and processes, and release files. Further `next` calls raise ValueError."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def save_state_rank(self) -> Cursor:
        """This host's state, with the manifest that explains a later mismatch. JSON-native."""
        return self._stream.cursor(with_manifest=True)

    def restore_state_rank(
        self,
        state: Mapping[str, Any] | None,
        *,
        allow_changes: bool = False,
        on_change: OnChange | None = None,
        note: str = "",
    ) -> None:
        """Restore what `save_state_rank` or `save_state_global` returned; None leaves a fresh loader as it is.

        Args:
            state: The state, saved by this host or for all hosts.
            allow_changes: The older spelling of `on_change="position"`.
            on_change: If the configuration or the data changed since: "refuse"; "amend", to continue every dataset of
                the mixture exactly where it is, with the present weights; "position", to continue at the same position
                of the changed stream, which repeats and loses samples. Default: as the loader was made.
            note: Reason of the change, for `amendments`.

        Raises:
            StateError: The state cannot be continued here.
            AmendmentError: The change cannot be amended.
        """
        if state is not None:
            self._stream.restore(state, allow_changes=allow_changes, on_change=on_change, note=note)

    def _gathered(self) -> Cursor:
        """The state of all hosts; collective with several."""
        return gather_cursor(self.save_state_rank(), self._processes(), self._framework)

    def save_state_global(self, global_dst_rank: int = 0, *, dst_rank: int | None = None) -> Cursor | None:
        """The state of all hosts, on the process of global rank `global_dst_rank`; None on the others.

        With several hosts, a collective operation: all call it at the same step.

        Args:
            global_dst_rank: Number of the process among all of the job, not of its data-parallel group.
            dst_rank: Another name of it.

        Raises:
            StateError: The hosts cannot be gathered, or are at different steps.
        """
        merged = self._gathered()
        processes = self._processes()
        wanted = global_dst_rank if dst_rank is None else dst_rank
        here = processes is None or self._stream.config.world_size == 1 or processes.rank == wanted
        return merged if here else None

    def restore_state_global(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
        *,
        src_rank: int | None = None,
        allow_changes: bool = False,
        on_change: OnChange | None = None,
        note: str = "",
    ) -> None:
        """Restore the state of all hosts on any number of hosts.

        Args:
            state: What `save_state_global` returned, or a list of each host's `save_state_rank`.
            src_rank: Host that has the state, where the others pass None; default: each host has it.
            allow_changes: As in `restore_state_rank`.
            on_change: As in `restore_state_rank`.
            note: As in `restore_state_rank`.

        Raises:
            StateError: The state cannot be continued here.
        """
        if src_rank is not None and self._stream.config.world_size > 1:
            state = broadcast_state(state, src_rank, self._processes(), self._framework)
        if state is None:
            raise StateError(
                "there is no state to restore on this host; pass it, or say which host has it by src_rank="
            )
        if not isinstance(state, Mapping):
            state = merge_cursors(state)
        self._stream.restore(state, allow_changes=allow_changes, on_change=on_change, note=note)

    def amend(
        self,
        weights: Mapping[str, Any] | None = None,
        *,
        add: Mapping[str, Any] | None = None,
        remove: Sequence[str] = (),
        note: str = "",
    ) -> None:
        """Change the mixture from the next step on; every dataset that stays continues exactly where it is.

        With several hosts, every host makes the same call at the same step.

        Args:
            weights: New weights of all datasets of a blend, by name (the last part of its path, its `name`, or its
                whole key); 0 pauses a dataset. Default: as they are.
            add: Datasets to append to the blend, by the name that `weights` uses: a path; a mapping with `path`,
                `split_part`, `subflavors` and `name`, as in a metadataset; or a dataset. Each needs a weight in
                `weights`. Its samples are made as those of the other datasets.
            remove: Names of datasets to leave out from now on. Samples that a pack or group holds are still delivered.
            note: Reason, for `amendments`.

        Raises:
            AmendmentError: There is no such dataset, or this stream's mixture cannot be amended.
        """
        self._stream.amend(weights=weights, add=add, remove=remove, note=note)

    @property
    def amendments(self) -> list[Any]:
        """All changes of the mixture in this run, as `energon_grain.amendments.history.Amendment`."""
        amendments = self._stream.amendments
        return [] if amendments is None else list(amendments.log)

    def which(self, step: int) -> StepSamples:
        """The samples of the global batch of a step, past or future. See `Stream.which`."""
        return self._stream.which(step)

    def skip(self, steps: int) -> None:
        """Jump over steps of this pass, which count as delivered. See `Stream.skip`."""
        self._stream.skip(steps)

    def can_restore_sample(self) -> bool:
        """Whether `restore_sample` works: always."""
        return True

    def restore_sample(self, restore_key: Any) -> Any:
        """A sample or batch again, from its `__restore_key__`; the loader stays where it is.

        Args:
            restore_key: Of anything that a loader of the same configuration delivered, on any host; JSON's lists in
                place of tuples are fine.

        Raises:
            StateError: It is not a restore key of this dataset, or the sample is dropped now.
        """
        return self._stream.restore_sample(restore_key)

    def stats(self) -> LoaderStats:
        """What was delivered, where the time went, and what was dropped and why. See `LoaderStats`."""
        return self._stream.stats()

    def watch(
        self, *, trace: str | os.PathLike[str] | None = None, prometheus: Any = None, name: str = "train"
    ) -> Watch:
        """A context in which the loader is watched; the stream does not change with it.

        `lap()` of what it gives is what happened since it was called last: `log(watch.lap().scalars())`.

        Args:
            trace: File for what ran when in every worker, in Chrome's trace-event format, which `ui.perfetto.dev`
                opens; `{host}` in its name is filled in. It grows by about 150 bytes an event, to a million of them or
                until the disk is full.
            prometheus: Port at which Prometheus finds the metrics (0: any that is free, which `port` tells), or a
                `prometheus_client.CollectorRegistry` that the program serves itself.
            name: Of the loader in the metrics, where there are several.

        Raises:
            ConfigError: The registry has the metrics of a loader of this name.
            MissingPackageError: There is no `prometheus_client`.
            OSError: The file cannot be opened, or the port is taken.
        """
        return Watch(self.stats, self._stream, trace=trace, prometheus=prometheus, name=name)

    def config(self) -> dict[str, Any]:
        """Every setting that changes the order, and what each leaf holds; JSON-native."""
        return self._stream.spec.manifest()

    def start_prefetch(self) -> None:
        """Begin to read ahead now."""
        self._stream.start_prefetch()
