# SPDX-License-Identifier: Apache-2.0
"""The public names and their modules. This list is the only one: type checkers read it, and lazy imports use it."""

from ._version import __version__ as __version__
from .compat.batch import Batch as Batch
from .compat.factories import (
    BaseWebdatasetFactory as BaseWebdatasetFactory,
    CaptioningWebdataset as CaptioningWebdataset,
    CrudeJsonlDatasetFactory as CrudeJsonlDatasetFactory,
    CrudeWebdataset as CrudeWebdataset,
    DefaultCrudeJsonlDatasetFactory as DefaultCrudeJsonlDatasetFactory,
    DefaultDecoderWebdatasetFactory as DefaultDecoderWebdatasetFactory,
    DefaultGenericWebdatasetFactory as DefaultGenericWebdatasetFactory,
    ImageClassificationWebdataset as ImageClassificationWebdataset,
    ImageWebdataset as ImageWebdataset,
    InterleavedWebdataset as InterleavedWebdataset,
    JoinedWebdatasetFactory as JoinedWebdatasetFactory,
    MultiChoiceVQAWebdataset as MultiChoiceVQAWebdataset,
    OCRWebdataset as OCRWebdataset,
    SimilarityInterleavedWebdataset as SimilarityInterleavedWebdataset,
    StandardWebdatasetFactory as StandardWebdatasetFactory,
    TextWebdataset as TextWebdataset,
    VidQAWebdataset as VidQAWebdataset,
    VQAOCRWebdataset as VQAOCRWebdataset,
    VQAWebdataset as VQAWebdataset,
)
from .compat.multi_epoch import (
    EpochIndex as EpochIndex,
    IdentityMultiEpochDatasetWrapper as IdentityMultiEpochDatasetWrapper,
    MultiEpochDataset as MultiEpochDataset,
    MultiEpochDatasetResampler as MultiEpochDatasetResampler,
    MultiEpochDatasetWrapper as MultiEpochDatasetWrapper,
    MultiEpochLeaf as MultiEpochLeaf,
    SizedDataset as SizedDataset,
)
from .cooking.aux_stores import (
    DecodeFileStore as DecodeFileStore,
    FileStoreDecoder as FileStoreDecoder,
    PrimaryFileStore as PrimaryFileStore,
)
from .cooking.cooker import Cooker as Cooker, basic_sample_keys as basic_sample_keys, cooker as cooker
from .datasets.batching import Balance as Balance, BatchDataset as BatchDataset, MixBatchDataset as MixBatchDataset
from .datasets.dataset import (
    BaseCoreDataset as BaseCoreDataset,
    BaseCoreDatasetFactory as BaseCoreDatasetFactory,
    SavableDataset as SavableDataset,
)
from .datasets.grouping import GroupBatchDataset as GroupBatchDataset
from .datasets.hooks import stateless as stateless
from .datasets.mapping import FilterDataset as FilterDataset, MapDataset as MapDataset
from .datasets.mixtures import (
    BlendDataset as BlendDataset,
    BlendEpochizedDataset as BlendEpochizedDataset,
    ConcatDataset as ConcatDataset,
    DatasetBlendMode as DatasetBlendMode,
    LoadedDataset as LoadedDataset,
)
from .datasets.packing import PackingDataset as PackingDataset
from .datasets.passes import (
    EpochizeDataset as EpochizeDataset,
    LimitDataset as LimitDataset,
    RepeatDataset as RepeatDataset,
)
from .datasets.shuffling import ShuffleBufferDataset as ShuffleBufferDataset
from .datasets.stream_map import IterMapDataset as IterMapDataset
from .errors import (
    AmendmentError as AmendmentError,
    ConfigError as ConfigError,
    DatasetNotFoundError as DatasetNotFoundError,
    DecodingError as DecodingError,
    DuplicateKeyError as DuplicateKeyError,
    EmptyDatasetError as EmptyDatasetError,
    EnergonGrainError as EnergonGrainError,
    FatalSampleError as FatalSampleError,
    FieldMapError as FieldMapError,
    FingerprintError as FingerprintError,
    FormatError as FormatError,
    HostsError as HostsError,
    IndexFileError as IndexFileError,
    KeyNotFoundError as KeyNotFoundError,
    MissingObjectError as MissingObjectError,
    MissingPackageError as MissingPackageError,
    RangeError as RangeError,
    ReadError as ReadError,
    RefusedError as RefusedError,
    SkipSample as SkipSample,
    SplitError as SplitError,
    StaleIndexError as StaleIndexError,
    StateError as StateError,
    TarError as TarError,
    UntrustedCodeError as UntrustedCodeError,
    WorkerError as WorkerError,
)
from .gallery.preview import Preview as Preview, preview as preview
from .get_datasets import (
    get_dataset_from_config as get_dataset_from_config,
    get_train_dataset as get_train_dataset,
    get_val_dataset as get_val_dataset,
    get_val_datasets as get_val_datasets,
)
from .history.leaf_of import leaf_of as leaf_of
from .history.verify import verify_receipt as verify_receipt
from .kinds.prepared.file_stores import ObjectFileStore as ObjectFileStore, SystemFileStore as SystemFileStore
from .kinds.tar.source import WebdatasetFileStore as WebdatasetFileStore, WebDatasetSource as WebDatasetSource
from .loader.iterator import (
    SavableDataLoader as SavableDataLoader,
    get_loader as get_loader,
    get_savable_loader as get_savable_loader,
)
from .media.av_decoder import (
    AVData as AVData,
    AVDecoder as AVDecoder,
    AVWebdatasetDecoder as AVWebdatasetDecoder,
    get_clips_uniform as get_clips_uniform,
    get_single_frames_uniform as get_single_frames_uniform,
)
from .memory_budget.budget import use_memory as use_memory
from .memory_budget.settings import StreamMemory as StreamMemory
from .metadataset.digests import digest_dataset as digest_dataset
from .metadataset.documents import (
    DatasetLoader as DatasetLoader,
    DatasetLoaderInterface as DatasetLoaderInterface,
    Metadataset as Metadataset,
    MetadatasetV2 as MetadatasetV2,
    load_dataset as load_dataset,
    prepare_metadataset as prepare_metadataset,
    traverse_metadataset as traverse_metadataset,
)
from .metadataset.samples import measure_dataset as measure_dataset, open_columns as open_columns
from .planning.packers import (
    Packs as Packs,
    best_fit as best_fit,
    best_fit_decreasing as best_fit_decreasing,
    first_fit_decreasing as first_fit_decreasing,
    greedy_knapsack as greedy_knapsack,
    packing_efficiency as packing_efficiency,
)
from .planning.planned_packing import (
    CostBudget as CostBudget,
    PackingPlan as PackingPlan,
    PlannedPackingDataset as PlannedPackingDataset,
)
from .prepare.measure import column_function as column_function
from .prepare.samples import Columns as Columns
from .prepare.writer import DatasetWriter as DatasetWriter, write_dataset as write_dataset
from .replicas.sequence_slice import SequenceSlice as SequenceSlice, pad_to_multiple as pad_to_multiple
from .samples.media_metadata import (
    AVMetadata as AVMetadata,
    ImageMetadata as ImageMetadata,
    MediaMetadataBase as MediaMetadataBase,
    MediaMetadataType as MediaMetadataType,
    deserialize_media_metadata as deserialize_media_metadata,
    serialize_media_metadata as serialize_media_metadata,
)
from .samples.sample import (
    Sample as Sample,
    SourceInfo as SourceInfo,
    add_source_info as add_source_info,
    edataclass as edataclass,
)
from .samples.types import (
    CaptioningSample as CaptioningSample,
    CrudeSample as CrudeSample,
    ImageClassificationSample as ImageClassificationSample,
    ImageSample as ImageSample,
    InterleavedSample as InterleavedSample,
    MultiChoiceVQASample as MultiChoiceVQASample,
    OCRSample as OCRSample,
    SimilarityInterleavedSample as SimilarityInterleavedSample,
    TextSample as TextSample,
    VidQASample as VidQASample,
    VQAOCRSample as VQAOCRSample,
    VQASample as VQASample,
)
from .sources.cache_pool import (
    CachePool as CachePool,
    DirectLazy as DirectLazy,
    Lazy as Lazy,
    MockLazy as MockLazy,
    NoCachePool as NoCachePool,
)
from .sources.file_store import FileStore as FileStore
from .sources.source import (
    RawBatch as RawBatch,
    RawSample as RawSample,
    SampleLocation as SampleLocation,
    Source as Source,
)
from .storage.epath import EPath as EPath
from .storage.settings import (
    StorageSettings as StorageSettings,
    StoreSettings as StoreSettings,
    use_storage as use_storage,
)
from .stores.file_cache_pool import FileCacheLazy as FileCacheLazy, FileStoreCachePool as FileStoreCachePool
from .stream.cursor import merge_cursors as merge_cursors
from .stream.hooks import (
    Draw as Draw,
    current_draw as current_draw,
    current_draws as current_draws,
)
from .stream.run import SampleRecord as SampleRecord
from .stream.worker_config import (
    WorkerConfig as WorkerConfig,
    log_exception as log_exception,
    reraise_exception as reraise_exception,
)
from .task_encoder import (
    AugmentTaskEncoder as AugmentTaskEncoder,
    DefaultTaskEncoder as DefaultTaskEncoder,
    TaskEncoder as TaskEncoder,
)
from .transforms.batching import (
    batch_list as batch_list,
    batch_pad_stack as batch_pad_stack,
    batch_stack as batch_stack,
    concat_pad as concat_pad,
    generic_batch as generic_batch,
    generic_concat as generic_concat,
    homogeneous_concat_mix as homogeneous_concat_mix,
)
from .transforms.decode import SampleDecoder as SampleDecoder
from .watch.loader_stats import LoaderStats as LoaderStats, merge_stats as merge_stats
from .watch.log_samples import (
    GcDataset as GcDataset,
    LogSampleDataset as LogSampleDataset,
    default_get_batch_keys as default_get_batch_keys,
)
from .watch.stream import Stream as Stream

__all__: list[str]
