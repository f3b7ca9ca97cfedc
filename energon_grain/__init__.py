"""Exact, elastic and fast data loading for Energon WebDatasets, for JAX through Grain and for PyTorch.

Everything below is imported when it is first used: `import energon_grain` by itself costs next to nothing, and neither
Grain nor JAX is loaded before a loader is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from energon_grain._version import __version__

if TYPE_CHECKING:
    from energon_grain.datasets.augment_task_encoder import AugmentTaskEncoder
    from energon_grain.datasets.batching import BatchDataset, GroupBatchDataset, MixBatchDataset
    from energon_grain.datasets.cache_pool import CachePool, DirectLazy, Lazy, MockLazy, NoCachePool
    from energon_grain.datasets.collect_garbage import GcDataset
    from energon_grain.datasets.cooker import Cooker, basic_sample_keys, cooker
    from energon_grain.datasets.dataset import BaseCoreDataset, BaseCoreDatasetFactory, SavableDataset
    from energon_grain.datasets.draw_context import Draw, current_draw
    from energon_grain.datasets.error_handlers import log_exception, reraise_exception
    from energon_grain.datasets.file_store_cache_pool import FileCacheLazy, FileStoreCachePool
    from energon_grain.datasets.file_store_views import DecodeFileStore, FileStoreDecoder, PrimaryFileStore
    from energon_grain.datasets.get_datasets import (
        get_dataset_from_config,
        get_train_dataset,
        get_val_dataset,
        get_val_datasets,
    )
    from energon_grain.datasets.joined_webdataset_factory import JoinedWebdatasetFactory
    from energon_grain.datasets.jsonl_factories import CrudeJsonlDatasetFactory, DefaultCrudeJsonlDatasetFactory
    from energon_grain.datasets.loaded_dataset import DatasetBlendMode, LoadedDataset
    from energon_grain.datasets.log_samples import LogSampleDataset, default_get_batch_keys
    from energon_grain.datasets.mapping import FilterDataset, IterMapDataset, MapDataset
    from energon_grain.datasets.mixtures import BlendDataset, BlendEpochizedDataset, ConcatDataset
    from energon_grain.datasets.multi_epoch import EpochIndex, MultiEpochDataset, SizedDataset
    from energon_grain.datasets.multi_epoch_resampler import MultiEpochDatasetResampler
    from energon_grain.datasets.multi_epoch_wrapper import IdentityMultiEpochDatasetWrapper, MultiEpochDatasetWrapper
    from energon_grain.datasets.nodes import EpochizeDataset, LimitDataset, RepeatDataset, ShuffleBufferDataset
    from energon_grain.datasets.packing import PackingDataset
    from energon_grain.datasets.stateless import stateless
    from energon_grain.datasets.task_encoder import DefaultTaskEncoder, TaskEncoder
    from energon_grain.datasets.webdataset_factories import (
        BaseWebdatasetFactory,
        CaptioningWebdataset,
        CrudeWebdataset,
        DefaultDecoderWebdatasetFactory,
        DefaultGenericWebdatasetFactory,
        ImageClassificationWebdataset,
        ImageWebdataset,
        InterleavedWebdataset,
        MultiChoiceVQAWebdataset,
        OCRWebdataset,
        SimilarityInterleavedWebdataset,
        StandardWebdatasetFactory,
        TextWebdataset,
        VidQAWebdataset,
        VQAOCRWebdataset,
        VQAWebdataset,
    )
    from energon_grain.datasets.worker_config import WorkerConfig
    from energon_grain.errors import (
        ConfigError,
        DatasetNotFoundError,
        DecodingError,
        DuplicateKeyError,
        EmptyDatasetError,
        EnergonGrainError,
        FatalSampleError,
        FieldMapError,
        FingerprintError,
        FormatError,
        HostsError,
        IndexFileError,
        KeyNotFoundError,
        MissingObjectError,
        RangeError,
        ReadError,
        RefusedError,
        SkipSample,
        SplitError,
        StaleIndexError,
        StateError,
        TarError,
        UntrustedCodeError,
        WorkerError,
    )
    from energon_grain.loader.iterator import SavableDataLoader, get_loader, get_savable_loader
    from energon_grain.metadataset.documents import DatasetLoader, DatasetLoaderInterface, Metadataset, MetadatasetV2
    from energon_grain.metadataset.flat import traverse_metadataset
    from energon_grain.metadataset.load import load_dataset
    from energon_grain.metadataset.prepare_joins import prepare_metadataset
    from energon_grain.samples.batch import Batch
    from energon_grain.samples.crude import CrudeSample
    from energon_grain.samples.edataclass import edataclass
    from energon_grain.samples.image import CaptioningSample, ImageClassificationSample, ImageSample
    from energon_grain.samples.interleaved import InterleavedSample, SimilarityInterleavedSample
    from energon_grain.samples.ocr import OCRSample, VQAOCRSample
    from energon_grain.samples.question import MultiChoiceVQASample, VidQASample, VQASample
    from energon_grain.samples.sample import Sample
    from energon_grain.samples.source_info import SourceInfo, add_source_info
    from energon_grain.samples.text import TextSample
    from energon_grain.sources.file_store import FileStore
    from energon_grain.sources.object_file_store import ObjectFileStore
    from energon_grain.sources.raw import RawBatch, RawSample
    from energon_grain.sources.source import SampleLocation, Source
    from energon_grain.sources.system_file_store import SystemFileStore
    from energon_grain.sources.webdataset import WebDatasetSource
    from energon_grain.sources.webdataset_file_store import WebdatasetFileStore
    from energon_grain.storage.epath import EPath
    from energon_grain.storage.storage_settings import StorageSettings, StoreSettings, use_storage
    from energon_grain.stream.cursor import merge_cursors
    from energon_grain.stream.multi_epoch_leaf import MultiEpochLeaf
    from energon_grain.stream.run import Stream
    from energon_grain.stream.which import SampleRecord
    from energon_grain.transforms.batching import (
        batch_list,
        batch_pad_stack,
        batch_stack,
        concat_pad,
        generic_batch,
        generic_concat,
        homogeneous_concat_mix,
    )
    from energon_grain.transforms.decode import SampleDecoder
    from energon_grain.transforms.packing import (
        Packs,
        best_fit,
        best_fit_decreasing,
        first_fit_decreasing,
        greedy_knapsack,
        packing_efficiency,
    )

__all__ = [
    "AugmentTaskEncoder",
    "BaseCoreDataset",
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "Batch",
    "BatchDataset",
    "BlendDataset",
    "BlendEpochizedDataset",
    "CachePool",
    "CaptioningSample",
    "CaptioningWebdataset",
    "ConcatDataset",
    "ConfigError",
    "Cooker",
    "CrudeJsonlDatasetFactory",
    "CrudeSample",
    "CrudeWebdataset",
    "DatasetBlendMode",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DatasetNotFoundError",
    "DecodeFileStore",
    "DecodingError",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "DefaultTaskEncoder",
    "DirectLazy",
    "Draw",
    "DuplicateKeyError",
    "EPath",
    "EmptyDatasetError",
    "EnergonGrainError",
    "EpochIndex",
    "EpochizeDataset",
    "FatalSampleError",
    "FieldMapError",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "FilterDataset",
    "FingerprintError",
    "FormatError",
    "GcDataset",
    "GroupBatchDataset",
    "HostsError",
    "IdentityMultiEpochDatasetWrapper",
    "ImageClassificationSample",
    "ImageClassificationWebdataset",
    "ImageSample",
    "ImageWebdataset",
    "IndexFileError",
    "InterleavedSample",
    "InterleavedWebdataset",
    "IterMapDataset",
    "JoinedWebdatasetFactory",
    "KeyNotFoundError",
    "Lazy",
    "LimitDataset",
    "LoadedDataset",
    "LogSampleDataset",
    "MapDataset",
    "Metadataset",
    "MetadatasetV2",
    "MissingObjectError",
    "MixBatchDataset",
    "MockLazy",
    "MultiChoiceVQASample",
    "MultiChoiceVQAWebdataset",
    "MultiEpochDataset",
    "MultiEpochDatasetResampler",
    "MultiEpochDatasetWrapper",
    "MultiEpochLeaf",
    "NoCachePool",
    "OCRSample",
    "OCRWebdataset",
    "ObjectFileStore",
    "PackingDataset",
    "Packs",
    "PrimaryFileStore",
    "RangeError",
    "RawBatch",
    "RawSample",
    "ReadError",
    "RefusedError",
    "RepeatDataset",
    "Sample",
    "SampleDecoder",
    "SampleLocation",
    "SampleRecord",
    "SavableDataLoader",
    "SavableDataset",
    "ShuffleBufferDataset",
    "SimilarityInterleavedSample",
    "SimilarityInterleavedWebdataset",
    "SizedDataset",
    "SkipSample",
    "Source",
    "SourceInfo",
    "SplitError",
    "StaleIndexError",
    "StandardWebdatasetFactory",
    "StateError",
    "StorageSettings",
    "StoreSettings",
    "Stream",
    "SystemFileStore",
    "TarError",
    "TaskEncoder",
    "TextSample",
    "TextWebdataset",
    "UntrustedCodeError",
    "VQAOCRSample",
    "VQAOCRWebdataset",
    "VQASample",
    "VQAWebdataset",
    "VidQASample",
    "VidQAWebdataset",
    "WebDatasetSource",
    "WebdatasetFileStore",
    "WorkerConfig",
    "WorkerError",
    "__version__",
    "add_source_info",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "best_fit",
    "best_fit_decreasing",
    "concat_pad",
    "cooker",
    "current_draw",
    "default_get_batch_keys",
    "edataclass",
    "first_fit_decreasing",
    "generic_batch",
    "generic_concat",
    "get_dataset_from_config",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "greedy_knapsack",
    "homogeneous_concat_mix",
    "load_dataset",
    "log_exception",
    "merge_cursors",
    "packing_efficiency",
    "prepare_metadataset",
    "reraise_exception",
    "stateless",
    "traverse_metadataset",
    "use_storage",
]

_MODULES = {
    "datasets.augment_task_encoder": ("AugmentTaskEncoder",),
    "datasets.batching": ("BatchDataset", "GroupBatchDataset", "MixBatchDataset"),
    "datasets.cache_pool": ("CachePool", "DirectLazy", "Lazy", "MockLazy", "NoCachePool"),
    "datasets.collect_garbage": ("GcDataset",),
    "datasets.cooker": ("Cooker", "basic_sample_keys", "cooker"),
    "datasets.dataset": ("BaseCoreDataset", "BaseCoreDatasetFactory", "SavableDataset"),
    "datasets.draw_context": ("Draw", "current_draw"),
    "datasets.error_handlers": ("log_exception", "reraise_exception"),
    "datasets.file_store_cache_pool": ("FileCacheLazy", "FileStoreCachePool"),
    "datasets.file_store_views": ("DecodeFileStore", "FileStoreDecoder", "PrimaryFileStore"),
    "datasets.get_datasets": ("get_dataset_from_config", "get_train_dataset", "get_val_dataset", "get_val_datasets"),
    "datasets.joined_webdataset_factory": ("JoinedWebdatasetFactory",),
    "datasets.jsonl_factories": ("CrudeJsonlDatasetFactory", "DefaultCrudeJsonlDatasetFactory"),
    "datasets.loaded_dataset": ("DatasetBlendMode", "LoadedDataset"),
    "datasets.log_samples": ("LogSampleDataset", "default_get_batch_keys"),
    "datasets.mapping": ("FilterDataset", "IterMapDataset", "MapDataset"),
    "datasets.mixtures": ("BlendDataset", "BlendEpochizedDataset", "ConcatDataset"),
    "datasets.multi_epoch": ("EpochIndex", "MultiEpochDataset", "SizedDataset"),
    "datasets.multi_epoch_resampler": ("MultiEpochDatasetResampler",),
    "datasets.multi_epoch_wrapper": ("IdentityMultiEpochDatasetWrapper", "MultiEpochDatasetWrapper"),
    "datasets.nodes": ("EpochizeDataset", "LimitDataset", "RepeatDataset", "ShuffleBufferDataset"),
    "datasets.packing": ("PackingDataset",),
    "datasets.stateless": ("stateless",),
    "datasets.task_encoder": ("DefaultTaskEncoder", "TaskEncoder"),
    "datasets.webdataset_factories": (
        "BaseWebdatasetFactory",
        "CaptioningWebdataset",
        "CrudeWebdataset",
        "DefaultDecoderWebdatasetFactory",
        "DefaultGenericWebdatasetFactory",
        "ImageClassificationWebdataset",
        "ImageWebdataset",
        "InterleavedWebdataset",
        "MultiChoiceVQAWebdataset",
        "OCRWebdataset",
        "SimilarityInterleavedWebdataset",
        "StandardWebdatasetFactory",
        "TextWebdataset",
        "VQAOCRWebdataset",
        "VQAWebdataset",
        "VidQAWebdataset",
    ),
    "datasets.worker_config": ("WorkerConfig",),
    "loader.iterator": ("SavableDataLoader", "get_loader", "get_savable_loader"),
    "metadataset.documents": ("DatasetLoader", "DatasetLoaderInterface", "Metadataset", "MetadatasetV2"),
    "metadataset.flat": ("traverse_metadataset",),
    "metadataset.load": ("load_dataset",),
    "metadataset.prepare_joins": ("prepare_metadataset",),
    "samples.batch": ("Batch",),
    "samples.crude": ("CrudeSample",),
    "samples.edataclass": ("edataclass",),
    "samples.image": ("CaptioningSample", "ImageClassificationSample", "ImageSample"),
    "samples.interleaved": ("InterleavedSample", "SimilarityInterleavedSample"),
    "samples.ocr": ("OCRSample", "VQAOCRSample"),
    "samples.question": ("MultiChoiceVQASample", "VQASample", "VidQASample"),
    "samples.sample": ("Sample",),
    "samples.source_info": ("SourceInfo", "add_source_info"),
    "samples.text": ("TextSample",),
    "sources.file_store": ("FileStore",),
    "sources.raw": ("RawBatch", "RawSample"),
    "sources.source": ("SampleLocation", "Source"),
    "sources.object_file_store": ("ObjectFileStore",),
    "sources.system_file_store": ("SystemFileStore",),
    "sources.webdataset": ("WebDatasetSource",),
    "sources.webdataset_file_store": ("WebdatasetFileStore",),
    "storage.epath": ("EPath",),
    "storage.storage_settings": ("StorageSettings", "StoreSettings", "use_storage"),
    "stream.cursor": ("merge_cursors",),
    "stream.multi_epoch_leaf": ("MultiEpochLeaf",),
    "stream.run": ("Stream",),
    "stream.which": ("SampleRecord",),
    "transforms.batching": (
        "batch_list",
        "batch_pad_stack",
        "batch_stack",
        "concat_pad",
        "generic_batch",
        "generic_concat",
        "homogeneous_concat_mix",
    ),
    "transforms.decode": ("SampleDecoder",),
    "transforms.packing": (
        "Packs",
        "best_fit",
        "best_fit_decreasing",
        "first_fit_decreasing",
        "greedy_knapsack",
        "packing_efficiency",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOMES.get(name) or ("errors" if name in __all__ else None)
    if module is None:
        raise AttributeError(f"module 'energon_grain' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"energon_grain.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
