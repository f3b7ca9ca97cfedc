# SPDX-License-Identifier: Apache-2.0
"""Run programs written for Megatron-Energon unchanged: importing this module serves Energon's names.

After the import, `megatron.energon` and the modules inside it that programs import are modules without a file, with the
names of this library. Nothing is copied: `megatron.energon.WorkerConfig` *is* `energon_grain_torch.WorkerConfig`, so
pickles and checkpoints with one name load as the other. There are three ways to enable it:

    import energon_grain_torch.as_megatron_energon                          # first line of the program
    python -m energon_grain_torch.as_megatron_energon program.py …          # or -m package.module …
    ENERGON_IMPL=grain PYTHONPATH=$(python -m energon_grain_torch.as_megatron_energon --start) program …

The last form is for programs that start others: it applies to every Python that inherits the two variables. (The folder
contains a `sitecustomize.py`, which costs nothing in processes that import nothing of Energon.) The second form sets
them for the processes that the program starts.

The rest of `megatron`, such as `megatron.core`, is not affected. A name of Energon that this library lacks raises an
`ImportError` with an alternative, and `hasattr` returns False for it. Names inside Energon that its own tests import
(`STAND_INS`) can be imported, and raise that error when they are called.
"""

from __future__ import annotations

import argparse
import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, NamespaceLoader, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from energon_grain.formats.class_ref import TRUST_ENVIRONMENT
from energon_grain.forms import did_you_mean
from energon_grain.transforms.decode import PICKLE_ENVIRONMENT

PACKAGE = "megatron.energon"
ENVIRONMENT = "ENERGON_IMPL"
START = Path(__file__).with_name("start")
"""Folder whose `sitecustomize` enables this module in every Python with it in PYTHONPATH, if `ENERGON_IMPL=grain`."""

_MODULES = """
    av av.av_data av.av_decoder av.av_reader av.utils
    bracecollapse
    cache cache.base cache.file_cache_pool cache.file_store cache.no_cache
    cli cli.main
    dataset_config
    edataclass
    epathlib epathlib.epath
    errors
    flavors flavors.base_dataset flavors.captioning flavors.crude flavors.image flavors.image_classification
    flavors.interleaved flavors.jsonl flavors.jsonl.crude_jsonl_dataset flavors.multichoice_vqa flavors.ocr
    flavors.similarity_interleaved flavors.text flavors.vid_qa flavors.vqa flavors.vqa_and_ocr flavors.webdataset
    flavors.webdataset.aggregator_pool flavors.webdataset.base_webdataset flavors.webdataset.config
    flavors.webdataset.default_decoder_webdataset flavors.webdataset.default_generic_webdataset
    flavors.webdataset.empty_dataset_error flavors.webdataset.field_access flavors.webdataset.indexing
    flavors.webdataset.joined_webdataset flavors.webdataset.metadata flavors.webdataset.prepare
    flavors.webdataset.sample_decoder flavors.webdataset.sample_loader flavors.webdataset.standard_webdataset
    flavors.webdataset.structs
    fork_hook
    loader
    media media.extractor media.filesystem_prepare media.metadata
    metadataset metadataset.dataset_loader metadataset.loader metadataset.loader_interface metadataset.metadataset
    metadataset.metadataset_v2
    rng
    sample_utils
    savable_loader
    source_info
    state
    task_encoder task_encoder.base task_encoder.cooking task_encoder.loader
    tools tools.analyze_debug tools.checkpoint tools.info tools.lint tools.prepare tools.prepare_media tools.preview
    transforms transforms.common transforms.custom transforms.mappers transforms.merge
    watchdog
    worker
    wrappers wrappers.base wrappers.batch_dataset wrappers.blend_dataset wrappers.concat_dataset
    wrappers.epochize_dataset wrappers.filter_dataset wrappers.gc_dataset wrappers.group_batch_dataset
    wrappers.iter_map_dataset wrappers.limit_dataset wrappers.log_sample_dataset wrappers.map_dataset
    wrappers.mix_batch_dataset wrappers.packing_dataset wrappers.repeat_dataset wrappers.shuffle_buffer_dataset
    wrappers.skip wrappers.watchdog_dataset
"""
MODULES = frozenset(_MODULES.split())
"""Modules of Energon that this library serves, each with all names of `energon_grain_torch` and of `ELSEWHERE`."""

_COMMANDS = "energon_grain_torch.energon_commands"
_NAMES = "energon_grain_torch.energon_names"
ELSEWHERE = {
    "AVDecoderType": "energon_grain.transforms.media_types:AVDecode",
    "AVProbeIndex": _NAMES,
    "MediaFilterConfig": "energon_grain.media.headers:MediaFilterConfig",
    "MediaFilterStrategy": "energon_grain.media.headers:MediaFilterStrategy",
    "ImageDecoderType": "energon_grain.transforms.image:ImageDecode",
    "SampleException": "energon_grain.errors:EnergonGrainError",
    "TraversedDatasetReference": "energon_grain.metadataset.documents:TraversedDatasetReference",
    "Watchdog": "energon_grain.watch.watchdog:Watchdog",
    "WatchdogDataset": "energon_grain.watch.watchdog_dataset:WatchdogDataset",
    "WebdatasetMeta": "energon_grain.formats.nv_meta:DatasetInfo",
    "collapse": "energon_grain.formats.splits:collapse",
    "LoadedDatasetList": "energon_grain.datasets.mixtures:LoadedDatasets",
    "default_get_batch_keys": "energon_grain.watch.log_samples:default_get_batch_keys",
    # The module name in Energon's pickles. Programs that import it from there make and recognise this library's class.
    "source_info:SourceInfo": _NAMES,
    "get_source_info": "energon_grain.samples.sample:get_source_info",
    "flavors.webdataset.indexing:DuplicateSampleKeyError": "energon_grain.errors:DuplicateKeyError",
    "tools.analyze_debug:command": f"{_COMMANDS}:analyze_debug",
    "tools.info:command": f"{_COMMANDS}:info",
    "tools.lint:command": f"{_COMMANDS}:lint",
    "tools.prepare:command": f"{_COMMANDS}:prepare",
    "tools.prepare_media:command": f"{_COMMANDS}:prepare_media",
    "prepare_media_command": f"{_COMMANDS}:prepare_media",
    "tools.preview:command": f"{_COMMANDS}:preview",
    "command_redist": _COMMANDS,
    "cli.main:main": f"{_COMMANDS}:main",
    # The contents of saved states.
    "SliceState": f"{_NAMES}:State",
    "rng:SystemRngState": f"{_NAMES}:State",
    "savable_loader:SavableCheckpoint": f"{_NAMES}:State",
    "savable_loader:SavableDataLoaderState": f"{_NAMES}:State",
    "savable_loader:SavableDatasetCheckpoint": f"{_NAMES}:State",
    "savable_loader:SavableDatasetState": f"{_NAMES}:State",
    "FlexState": f"{_NAMES}:State",
    **dict.fromkeys(
        (
            "DEFAULT_PROFILE_NAME",
            "INDEX_SQLITE_FILENAME",
            "INDEX_UUID_FILENAME",
            "INFO_JSON_FILENAME",
            "INFO_YAML_FILENAME",
            "JOIN_INDEX_FILENAME",
            "MAIN_FOLDER_NAME",
            "NVDATASET_CACHE_DIR",
            "PinMemoryMixin",
            "SPLIT_YAML_FILENAME",
            "get_dataset_info",
            "format_sample_compact",
            "format_sample_detailed",
            "get_failure_tolerance",
            "prepare_filesystem_dataset",
            "get_stateless",
            "skip_meta_re",
            "split_name_re",
        ),
        _NAMES,
    ),
    **dict.fromkeys(
        (
            "MergeTransform",
            "CustomTransform",
            "TransformMapper",
            "CenterCropMapper",
            "RandomCropMapper",
            "RandomHorizontalFlipMapper",
            "RandomPerspectiveMapper",
            "RandomResizedCropMapper",
            "RandomRotationMapper",
            "RandomVerticalFlipMapper",
            "ResizeMapper",
        ),
        "energon_grain_torch.transforms",
    ),
}
"""Names that are missing in `energon_grain_torch`, or have another target there: `module:name`."""

STAND_INS = {
    "flavors.webdataset.aggregator_pool": ("AggregatorPool", "BaseAggregator"),
    "flavors.webdataset.indexing": ("SqliteIndexWriter",),
    "flavors.webdataset.prepare": ("IndexSample",),
    "fork_hook": (
        "DataclassForkMixin",
        "ForkMixin",
        "WeakCallbacks",
        "after_in_child_fork_hook",
        "after_in_parent_fork_hook",
        "before_fork_hook",
    ),
    "metadataset.metadataset_v2": ("AuxFilesystemReference",),
}
"""Internals of Energon by module. They can be imported and subclassed; calling them raises an error with advice."""

MISSING = {
    **dict.fromkeys(("ErrorContext", "handle_restore_errors"), "internal"),
    "AuxFilesystemReference": "`document.traverse(split_part=…)` lists the stores",
    "AVIndexMode": "every file has frames by time and by number",
    "flavors.webdataset.aggregator_pool": "`prepare_dataset(…, num_workers=…)`",
    "flavors.webdataset.indexing": "`prepare_dataset` writes the index",
    "flavors.webdataset.prepare": "`prepare_dataset` writes the index",
    "fork_hook": "Python's `os.register_at_fork`",
    "tools.mount": "not yet",
    "tools.analyze_debug": "`energon-grain which`, `loader.which`, `energon-grain info --plot`",
}
"""Missing names and modules, and the alternative for each."""


class _Finder(MetaPathFinder, Loader):
    """Finds `megatron.energon` and its modules, before any other finder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PACKAGE and not fullname.startswith(f"{PACKAGE}."):
            return None
        name = fullname.removeprefix(PACKAGE).removeprefix(".")
        if not name or name in MODULES:
            # All are packages: `from module import name` then imports `module.name`, which raises the error with
            # advice.
            return ModuleSpec(fullname, self, origin="energon_grain_torch", is_package=True)
        raise ImportError(_advice(name), name=fullname)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _StandIn(type):
    """A class or function of Energon that this library lacks."""

    path: str

    def __call__(cls, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(_advice(cls.path))

    def __getitem__(cls, _: Any) -> _StandIn:
        return cls


@cache
def _stand_in(module: str, name: str) -> _StandIn:
    return _StandIn(name, (), {"path": f"{module}.{name}", "__module__": f"{PACKAGE}.{module}"})


class _Module(ModuleType):
    """A module with the names of this library."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _ours(self.__name__, name)
        except AttributeError:
            path = f"{self.__name__}.{name}"
            if path.removeprefix(f"{PACKAGE}.") not in MODULES:
                raise
        return importlib.import_module(path)  # Energon's package imports all of its modules

    def __setattr__(self, name: str, value: Any) -> None:
        # In Energon, `edataclass` is both a function and a module; the function takes precedence.
        if not (isinstance(value, _Module) and name in ("edataclass",)):
            super().__setattr__(name, value)


class _Namespace(MetaPathFinder):
    """Finds `megatron` if no other finder does, as a namespace package, whose folders may be added later."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "megatron":
            return None
        find: Any = PathFinder.find_spec
        spec = ModuleSpec(fullname, NamespaceLoader(fullname, [], find), is_package=True)
        spec.submodule_search_locations = spec.loader._path  # type: ignore[union-attr]
        return spec


def _ours(module: str, name: str) -> Any:
    ours = importlib.import_module("energon_grain_torch")
    inside = module.removeprefix(PACKAGE).removeprefix(".")
    if name in STAND_INS.get(inside, ()):
        return _stand_in(inside, name)
    home, _, attribute = (ELSEWHERE.get(f"{inside}:{name}") or ELSEWHERE.get(name, "")).partition(":")
    if home:
        return getattr(importlib.import_module(home), attribute or name)
    if name == "__all__":
        return list(ours.__all__)
    if name in ours.__all__:
        return getattr(ours, name)
    raise AttributeError(f"{module!r} is served by energon_grain_torch, which has no {name!r}")


def _advice(path: str) -> str:
    """Return the error message for a module of Energon, or a name in one, that this library lacks."""
    names = path.split(".")
    known = [".".join(names[:end]) for end in range(len(names), 0, -1)]
    row = next((MISSING[name] for name in (names[-1], *known) if name in MISSING), "internal to Energon")
    public = (*importlib.import_module("energon_grain_torch").__all__, *(name for name in ELSEWHERE if ":" not in name))
    hint = did_you_mean(names[-1], public) if row.startswith("internal") else ""
    return (
        f"energon-grain, which replaces megatron.energon, has no `{PACKAGE}.{path}`: {row}{hint or '.'} "
        f"All names: https://energon-grain.readthedocs.io/en/latest/reference/energon-names/#every-name"
    )


def install() -> None:
    """Serve `megatron.energon` from now on, in this process and in every Python that it starts.

    Repeated calls have no effect. Raises ImportError if the real package has been imported already.
    """
    imported = sys.modules.get(PACKAGE)
    if imported is not None and not isinstance(imported, _Module):
        raise ImportError(
            f"{PACKAGE} was already imported from {getattr(imported, '__file__', None) or 'elsewhere'}, so the program "
            f"may use its classes: import energon_grain_torch.as_megatron_energon first, or start the program "
            f"with `python -m energon_grain_torch.as_megatron_energon`"
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        sys.meta_path.append(_Namespace())
    # Spawned worker processes import the modules of the program again, and these import Energon.
    os.environ[ENVIRONMENT] = "grain"
    path = os.environ.get("PYTHONPATH", "")
    if str(START) not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in (str(START), path) if entry)


def main(arguments: Sequence[str]) -> None:
    """Run a program with energon-grain in place of Energon, also in the Pythons that it starts."""
    parser = argparse.ArgumentParser(
        prog="python -m energon_grain_torch.as_megatron_energon",
        description="Run a program that was written for Megatron-Energon with energon-grain in its place.",
    )
    parser.add_argument("--start", action="store_true", help="print the folder to add to PYTHONPATH, and exit")
    parser.add_argument(
        "--trust-module", action="append", default=[], help="module that data files may name; repeatable"
    )
    parser.add_argument("--allow-pickle", action="store_true", help="decode parts that are pickles; they can run code")
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="module to run, and its arguments")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="script to run, and its arguments")
    options = parser.parse_args(arguments)
    if options.start:
        print(START)
        return
    if options.trust_module:
        known = os.environ.get(TRUST_ENVIRONMENT)
        os.environ[TRUST_ENVIRONMENT] = ",".join(([known] if known else []) + options.trust_module)
    if options.allow_pickle:
        os.environ[PICKLE_ENVIRONMENT] = "1"
    if options.module:
        sys.argv[:] = options.module
        runpy.run_module(options.module[0], run_name="__main__", alter_sys=True)
    elif options.program:
        sys.argv[:] = options.program
        sys.path[0] = os.path.dirname(os.path.abspath(options.program[0]))
        runpy.run_path(options.program[0], run_name="__main__")
    else:
        parser.error("expected a program: a script, or -m and a module")


if __name__ == "__main__":
    # Other modules import it by this name; `__main__` belongs to the program.
    importlib.import_module("energon_grain_torch.as_megatron_energon").main(sys.argv[1:])
else:
    install()
