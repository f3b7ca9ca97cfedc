"""What a measurement found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRate:
    """How fast bytes came.

    Attributes:
        samples_per_s: Samples whose parts were read.
        bytes_per_s: Bytes that were asked of the file system, small gaps between parts that are read along included.
        requests_per_s: Reads, each of one range; neighbouring parts and samples share one.
        seconds: How long it was measured.
    """

    samples_per_s: float
    bytes_per_s: float
    requests_per_s: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreFigures:
    """An object store.

    Attributes:
        latency_s: What a request for one byte takes, one at a time; the median.
        requests_in_flight: At a time, at most, by the settings.
        fetched_bytes: For a sample of the stream, on average, with what lies between the samples of a run; what lies on
            this machine takes none.
    """

    latency_s: float
    requests_in_flight: int
    fetched_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StorageFigures:
    """Reading alone, in the order of the stream, in one thread.

    Attributes:
        warm: The dataset's own reading, out of the page cache; of a dataset in an object store, out of the cache on
            local disk.
        cold: The same after the kernel was asked to drop the files from memory; None: that cannot be asked here. Of a
            dataset in a store, past the cache, chunk by chunk, with nothing fetched ahead; its bytes and requests are
            those of the store.
        pread_warm: The ceiling: nothing but `pread` on the same ranges. None: they are not ranges of local files.
        pread_cold: The same after dropping; of a store, ranges of 4 MiB by as many requests at a time as are allowed.
        still_cached: Share of the ranges that were in memory although they had been dropped, in 0 … 1; near 1, the
            cold figures are warm ones. None: the kernel does not tell.
        request_bytes: Bytes of a read, on average; 0: unknown.
        store: More of the store; None: the files lie on this machine.
    """

    warm: ReadRate
    cold: ReadRate | None
    pread_warm: ReadRate | None
    pread_cold: ReadRate | None
    still_cached: float | None
    request_bytes: float
    store: StoreFigures | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StageTime:
    """One stage of making a sample, in one thread, with everything in memory, or in the cache on local disk.

    Attributes:
        name: `storage`, `decode`, the name of a hook, `batch`, or `rest`: what the pipeline takes beyond all others,
            which is not known where it waits for an object store. In a store they are those of later epochs.
        microseconds: A sample.
        share: Of the time of all stages, in 0 … 1.
        serial: Whether it runs in one thread at a time, however many there are.
    """

    name: str
    microseconds: float
    share: float
    serial: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineRun:
    """The whole pipeline with one number of workers.

    Attributes:
        workers: As in `WorkerConfig.num_workers`.
        samples_per_s: Delivered; items (packs, say) where the pipeline makes such. No more than came from a store
            meanwhile: what was fetched ahead while the first batch was waited for does not count.
        first_batch_s: From the start to the first batch.
        fetched: What came from object stores meanwhile, from the start on; None: nothing, or other processes fetched
            it.
        whole_pass: Whether it ended because all samples of a dataset in a store had come: of those that come again
            nothing is to be learnt of it.
    """

    workers: int
    samples_per_s: float
    first_batch_s: float
    fetched: ReadRate | None = None
    whole_pass: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Everything that was measured.

    Attributes:
        path: What was measured, as it was given.
        batch_size: Samples of a batch.
        worker_type: `thread` or `process`.
        block: Consecutive samples that are read together; None: full shuffle.
        refused_block: What they would be if there were enough of them for a block in each lane; None: there are.
        largest_block: Of how many samples there are blocks for all lanes.
        items: Whether lanes filter, pack, group or generate, so that the pipeline does not deliver what was read.
        cores: That this process may use.
        memcpy_bytes_per_s: How fast one thread copies memory.
        dataset_samples: Samples of all leaves.
        sample_bytes: Bytes that reading a sample takes, on average.
        image_decode: What images are decoded to; None: there are none.
        storage: Reading alone.
        stages: In the order of the pipeline.
        pipeline: One a number of workers, ascending.
        measured: Samples that went through the stages.
        dropped: How many of them were dropped, by hook and error.
        notes: What limits the figures.
    """

    path: str
    batch_size: int
    worker_type: str
    block: int | None
    refused_block: int | None
    largest_block: int
    items: bool
    cores: int
    memcpy_bytes_per_s: float
    dataset_samples: int
    sample_bytes: float
    image_decode: str | None
    storage: StorageFigures
    stages: tuple[StageTime, ...]
    pipeline: tuple[PipelineRun, ...]
    measured: int
    dropped: dict[str, int]
    notes: tuple[str, ...]

    @property
    def bound(self) -> StageTime:
        """The stage that takes most."""
        return max(self.stages, key=lambda stage: stage.share)

    @property
    def best(self) -> PipelineRun:
        """The fastest run."""
        return max(self.pipeline, key=lambda run: run.samples_per_s)
