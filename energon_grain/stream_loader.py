# SPDX-License-Identifier: Apache-2.0
"""The common part of the loaders of all backends: a stream, its state, the processes of all hosts, and monitoring."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self, TextIO

import numpy as np
import numpy.typing as npt

from energon_grain.errors import EnergonGrainError, StateError, public, shorten
from energon_grain.history.leaf_of import leaf_names, leaf_of_items
from energon_grain.history.suspects import Blame
from energon_grain.history.uses import Seen, Uses
from energon_grain.host_processes import HostProcesses, broadcast_state, gather_cursor
from energon_grain.lazy_names import by_name
from energon_grain.samples.subscripts import Item, OneSubscript
from energon_grain.stream.cursor import Cursor, merge_cursors
from energon_grain.stream.extensions import BLAME, SEEN, WHEN
from energon_grain.stream.run import StepSamples
from energon_grain.stream.spec import names_of_leaves
from energon_grain.stream.stream import Held, OnChange
from energon_grain.watch.loader_stats import LoaderStats
from energon_grain.watch.progress import ProgressLine
from energon_grain.watch.stream import Stream
from energon_grain.watch.watching import Watch

_RECEIPT = "energon_grain.history.receipts.receipt_of"


@public
class StreamLoader(OneSubscript[Item]):
    """Batches of one host, with state: the framework-independent part of a loader.

    A loop that ended with `break` continues at its position. After the end of a pass, the next `iter` starts the next
    pass (for validation: the same pass); until then, `next` raises StopIteration.

    A backend sets `_stream` and `_framework`, and implements `_processes`, which defines how hosts communicate.
    """

    _stream: Stream
    _framework: ClassVar[str]

    def _processes(self) -> HostProcesses | None:
        """Return the processes of all hosts; None if the program did not connect them."""
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
        """Steps per host of the current pass; for an endless stream, of one pass over the data."""
        return len(self._stream)

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} has no random access: iterate over it directly, without another loader around it. "
            f"`which(step)` lists the samples of a step, and `BatchMapDataset`, which needs Grain, has random access. "
            f"For torch.utils.data.DataLoader, pass the dataset from get_train_dataset of energon_grain_torch"
        )

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({names_of_leaves(leaf.key[:-1] for leaf in self._stream.spec.leaves)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied, because it owns threads and open files: send the dataset, make a "
            f"loader there, and restore the state"
        )

    def progress(self, *, every_s: float = 10.0, file: TextIO | None = None) -> Iterator[Item]:
        """Iterate like `for batch in loader`, with a line that shows progress and speed.

        The line shows the step and the steps of the pass (for endless streams, the number of passes over the data), the
        samples per second of this host, the share of time that the loop waited for data, and the remaining time. Only
        host 0 prints it. The loader state is the same as in any loop: the position after the last batch delivered.

        Args:
            every_s: Minimum seconds between lines if `file` is not a terminal.
            file: Output. Default: stderr.
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
                del batch  # otherwise it stays in memory until the next batch is ready
        finally:
            line.end()

    @property
    def stream(self) -> Stream:
        """The underlying stream."""
        return self._stream

    def close(self) -> None:
        """Stop threads and processes, and release files. Further `next` calls raise ValueError."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def save_state_rank(self) -> Cursor:
        """Return this host's state as JSON-native values, with the manifest that explains a later mismatch."""
        return self._stream.cursor(with_manifest=True)

    def restore_state_rank(
        self,
        state: Mapping[str, Any] | None,
        *,
        allow_changes: bool = False,
        on_change: OnChange | None = None,
        note: str = "",
        held: Held = "deliver",
    ) -> None:
        """Restore a state from `save_state_rank` or `save_state_global`. None leaves a fresh loader unchanged.

        Args:
            state: The state of this host or of all hosts.
            allow_changes: The older spelling of `on_change="position"`.
            on_change: Used if the configuration or the data have changed. "refuse": raise an error. "amend": every
                dataset of the mixture continues exactly where it is, with the new weights. "position": continue at the
                same position of the changed stream, which repeats and loses samples. Default: the loader's setting.
            note: Reason for the change, shown by `amendments`.
            held: Samples of removed datasets that packs, groups or shuffles of lanes hold: "deliver" them, for which
                the configuration must still have the dataset (with the weight 0); or "drop" and count them.

        Raises:
            StateError: The state cannot be continued.
            AmendmentError: The change cannot be amended.
        """
        if state is not None:
            self._stream.restore(state, allow_changes=allow_changes, on_change=on_change, note=note, held=held)

    def _gathered(self) -> Cursor:
        """Return the state of all hosts; a collective operation with several hosts."""
        return gather_cursor(self.save_state_rank(), self._processes(), self._framework)

    def save_state_global(self, global_dst_rank: int = 0, *, dst_rank: int | None = None) -> Cursor | None:
        """Return the state of all hosts on the process of global rank `global_dst_rank`; None on the others.

        With several hosts this is a collective operation: all hosts call it at the same step.

        Args:
            global_dst_rank: Rank of the process in the whole job, not in its data-parallel group.
            dst_rank: Alias of `global_dst_rank`.

        Raises:
            StateError: The states cannot be gathered, or the hosts are at different steps.
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
        held: Held = "deliver",
    ) -> None:
        """Restore the state of all hosts on any number of hosts.

        Args:
            state: The result of `save_state_global`, or a list with each host's `save_state_rank`.
            src_rank: Host that has the state, if the others pass None. Default: each host has it.
            allow_changes: See `restore_state_rank`.
            on_change: See `restore_state_rank`.
            note: See `restore_state_rank`.
            held: See `restore_state_rank`.

        Raises:
            StateError: The state cannot be continued.
        """
        if src_rank is not None and self._stream.config.world_size > 1:
            state = broadcast_state(state, src_rank, self._processes(), self._framework)
        if state is None:
            raise StateError(
                "this host has no state to restore: pass a state, or name the host that has it with src_rank="
            )
        if not isinstance(state, Mapping):
            state = merge_cursors(state)
        self._stream.restore(state, allow_changes=allow_changes, on_change=on_change, note=note, held=held)

    def amend(
        self,
        weights: Mapping[str, Any] | None = None,
        *,
        add: Mapping[str, Any] | None = None,
        remove: Sequence[str] = (),
        exclude: Sequence[str] | Mapping[str, Any] | str | os.PathLike[str] | None = None,
        note: str = "",
        held: Held = "deliver",
    ) -> None:
        """Change the mixture from the next step on. Every remaining dataset continues exactly where it is.

        With several hosts, every host makes the same call at the same step. A blend by repetitions changes at its next
        epoch; a blend below a shuffle buffer, planned packs or a cost budget, at their next window (`amendments`).

        Args:
            weights: New weights of all datasets of a blend, by name (the last part of its path, its `name`, or its
                full key); repetitions, of a blend by repetitions. Weight 0 pauses a dataset. Default: unchanged.
            add: Datasets to append to the blend, by the name that `weights` uses: a path; a mapping with `path`,
                `split_part`, `subflavors` and `name`, as in a metadataset; a dataset; or the name of a dataset of
                another blend, which moves here and continues where it is. Each needs a weight in `weights`. Its
                samples are made in the same way as the others.
            remove: Names of datasets to remove.
            exclude: Samples to leave out from now on, also without a blend: a list of keys that one dataset has each;
                a mapping from names of datasets to keys, `<shard>/<key>` or shards, or to a condition over columns; or
                a file with a key per line, or a dataset, a tab and a key (`.csv` with the header `dataset,key` and
                `.json` are read too). The order of all other samples stays.
            note: Reason for the change, shown by `amendments`.
            held: Samples of datasets that are no longer drawn from, but that packs, groups or shuffles hold: "deliver",
                or "drop" and count them.

        Raises:
            AmendmentError: There is no such dataset or sample, or this stream's mixture cannot be amended.
        """
        self._stream.amend(weights=weights, add=add, remove=remove, exclude=exclude, note=note, held=held)

    def reweight(self, weights: Mapping[str, Any], *, note: str = "") -> None:
        """Change the weights of a blend from the next step on, for mixtures that follow the loss.

        As `amend(weights)`, but made for many small changes: it takes a millisecond, and errors do not add up. The
        counts of 500 changes differ from the sum of all shares by about 20 samples. A lane changes at the end of its
        run of 4 samples. Weights are rounded to 16 bits. Equal weights change nothing.

        With several hosts, every host makes the same call at the same step with the same numbers. Losses differ between
        hosts, so average them over all hosts first, or broadcast the weights.

        Args:
            weights: New weights of all datasets of a blend, by name, as in `amend`; only their ratios matter.
            note: Reason for the change, shown by `amendments`.

        Raises:
            AmendmentError: There is no such dataset, or this stream's mixture cannot be amended.
            ConfigError: A weight is negative, or not a finite number.
        """
        self._stream.amend(weights=weights, note=note, smooth=True)

    @property
    def amendments(self) -> list[Any]:
        """All changes of the mixture in this run: a list of `energon_grain.amendments.history.Amendment`."""
        amendments = self._stream.amendments
        return [] if amendments is None else list(amendments.log)

    @property
    def leaf_names(self) -> list[str]:
        """The name of each dataset of this run, for the numbers in `batch.leaf` and `leaf_of`.

        It is the dataset's `name`, or the last part of its path (all of the path, if an earlier dataset has that name).
        Amendments append names and change none.
        """
        return leaf_names(self._stream.spec)

    def leaf_of(self, batch: Any) -> npt.NDArray[np.int32]:
        """Return the number of the dataset of each sample of a batch that this loader delivered.

        Also of batches whose samples are filtered, grouped or packed. Otherwise `batch.leaf` is the same.

        Args:
            batch: A batch, a sample, or the `__restore_key__` of one.

        Returns:
            (batch,) int32, indices into `leaf_names`; -1 for a pack of samples of several datasets.

        Raises:
            StateError: The batch has no `__restore_key__`.
        """
        return leaf_of_items(self._stream.spec, batch)

    def which(self, step: int) -> StepSamples:
        """Return the samples of the global batch of a past or future step. See `Stream.which`."""
        return self._stream.which(step)

    def when(self, key: str | Sequence[str], dataset: str | None = None, *, replay: bool = False) -> Uses:
        """Return every use of a sample by this run until now, and the next one: step, host, place, pass.

        Nothing is read except the index of keys. If samples are dropped, filtered, grouped or packed while the run
        goes on, positions are exact, but not steps: `Uses.replay` says what finding them costs.

        Args:
            key: Key of the sample (`shard/key` works too), or several. In a join, the key of any member.
            dataset: Search only in this dataset: its path, the last part of that, its `name`, or the full key of a
                leaf; or a member of a join. Default: all.
            replay: Find steps that are not known by making the steps between the nearest known places again.

        Raises:
            KeyNotFoundError: There is no such sample or dataset in this run.
            StateError: A dataset is drawn with replacement, or the replay is impossible.
        """
        return self._stream.ask(WHEN, [key] if isinstance(key, str) else list(key), dataset=dataset, replay=replay)

    def seen(self, until: int | None = None) -> Seen:
        """Return how often this run used each sample of each dataset; no data are read.

        Args:
            until: Count the steps before this one, past or future. Default: until now.

        Raises:
            StateError: Samples are dropped, filtered, grouped or packed, and this host does not know the place of
                `until`, or the lanes of all hosts.
        """
        return self._stream.ask(SEEN, until)

    def receipt(self, *, allow_missing: bool = False) -> dict[str, Any]:
        """Return what was read until now: a JSON object of less than 1 KB, the same on every host.

        It has the digests of all datasets, of every setting, and of all changes of the mixture, the step, and a root
        over them. `str(receipt)` is its text. `energon-grain verify` checks data and configuration against it.
        Auxiliary data and the program (task encoder, hooks) are not covered.

        Args:
            allow_missing: For datasets without digests, enter null instead of raising.

        Raises:
            StateError: A dataset has no digests; names the command that stores them.
            StaleIndexError: The digests are of other files.
        """
        return by_name(_RECEIPT)(self._stream, allow_missing=allow_missing)

    def blame(self, losses: Any, **options: Any) -> Blame:
        """Rank samples, shards and datasets by how much of the run's unusual losses they explain.

        `print` the result. Usually no data is read.

        Args:
            losses: Losses by step: a mapping; or a file, as CSV, JSON lines, TensorBoard event files, or an export of
                W&B. A list in place of a loss holds the losses of all samples of the step, gathered from all hosts.
            **options: `steps`, `lag`, `mean_of` and `most`, see `energon_grain.history.blame.blame`.

        Returns:
            An `energon_grain.history.suspects.Blame`.

        Raises:
            ConfigError: The losses have too few steps, or do not fit the steps.
            StateError: A step does not exist, or its samples cannot be known.
        """
        return self._stream.ask(BLAME, losses, **options)

    def skip(self, steps: int) -> None:
        """Skip steps of this pass; they count as delivered. See `Stream.skip`."""
        self._stream.skip(steps)

    def can_restore_sample(self) -> bool:
        """Return whether `restore_sample` works: always True."""
        return True

    def restore_sample(self, restore_key: Any) -> Any:
        """Make a sample or batch again from its `__restore_key__`. The position of the loader does not change.

        Args:
            restore_key: Key of a sample or batch that a loader of the same configuration delivered, on any host. Lists
                in place of tuples (from JSON) are accepted.

        Raises:
            StateError: It is not a restore key of this dataset, or the sample is now dropped.
        """
        return self._stream.restore_sample(restore_key)

    def stats(self) -> LoaderStats:
        """Return counts of delivered and dropped samples, drop reasons, and time per stage. See `LoaderStats`."""
        return self._stream.stats()

    def watch(
        self, *, trace: str | os.PathLike[str] | None = None, prometheus: Any = None, name: str = "train"
    ) -> Watch:
        """Return a context that monitors the loader. The stream does not change.

        Inside it, `lap()` returns the statistics since its last call: `log(watch.lap().scalars())`.

        Args:
            trace: File for a timeline of every worker, in Chrome's trace-event format, for `ui.perfetto.dev`. `{host}`
                in its name is filled in. It grows by about 150 bytes per event, up to a million events or until the
                disk is full.
            prometheus: Port that serves the metrics to Prometheus (0: any free port, see `port`), or a
                `prometheus_client.CollectorRegistry` that the program serves itself.
            name: Name of the loader in the metrics, to distinguish several loaders.

        Raises:
            ConfigError: The registry already has metrics of a loader of this name.
            MissingPackageError: `prometheus_client` is not installed.
            OSError: The file cannot be opened, or the port is in use.
        """
        return Watch(self.stats, self._stream, trace=trace, prometheus=prometheus, name=name)

    def config(self) -> dict[str, Any]:
        """Return every setting that changes the order, and the content of each leaf, as JSON-native values."""
        return self._stream.spec.manifest()

    def start_prefetch(self) -> None:
        """Start prefetching now."""
        self._stream.start_prefetch()
