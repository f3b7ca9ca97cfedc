"""Errors say what is wrong and what to do: the advice is followed here."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runs import run
from full_disk import size_limit

from energon_grain import (
    ConfigError,
    Cooker,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    SkipSample,
    StateError,
    TextSample,
    WorkerConfig,
    WorkerError,
    batch_stack,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_grain.errors import MissingPackageError
from energon_grain.extras import needed_for
from energon_grain.prepare import measure_dataset, prepare_dataset
from energon_grain.transforms.batching import batch_samples

_SHUFFLE: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}


class _Crude(DefaultTaskEncoder):
    decoder = None
    cookers = (Cooker(lambda sample: sample),)


def test_a_folder_of_loose_files_names_a_command_that_works(tmp_path: Path) -> None:
    folder = tmp_path / "my videos"
    (folder / "b").mkdir(parents=True)
    for name in ("1.mp4", "b/2.mp4"):
        (folder / name).write_bytes(b"x")
    texts: list[str] = []
    for attempt in (lambda: get_train_dataset(folder, **_SHUFFLE), lambda: prepare_dataset(folder)):
        with pytest.raises(DatasetNotFoundError, match=r"are not in shards") as caught:
            attempt()
        texts.append(str(caught.value))
    [shown] = {re.search(r"`energon-grain (convert .*?)`", text)[1] for text in texts}  # pyright: ignore[reportOptionalSubscript]
    done = run(*shlex.split(shown))
    assert done.exit_code == 0, done.output
    made = get_val_dataset(tmp_path / "my videos-tars", split_part="train", batch_size=None, task_encoder=_Crude())
    assert [sample["__key__"] for sample in made] == ["1", "b/2"]


def test_missing_info_files_name_the_command(text_dataset: Callable[..., Path], tmp_path: Path) -> None:
    root = tmp_path / "copied"
    shutil.copytree(text_dataset(12), root)
    (root / ".nv-meta/.info.json").unlink()
    (root / ".nv-meta/index.sqlite").touch()
    with pytest.raises(ConfigError, match=r"\.info\.json is missing: .* interrupted.* run `energon-grain prepare"):
        get_train_dataset(root, **_SHUFFLE)


@pytest.mark.parametrize("written", ["coko-train", "cocotrain", "coco-trian"])
def test_a_path_that_is_nearly_right(text_dataset: Callable[..., Path], tmp_path: Path, written: str) -> None:
    (tmp_path / "coco-train").symlink_to(text_dataset(12))
    with pytest.raises(DatasetNotFoundError, match=rf"Did you mean {tmp_path}/coco-train\?"):
        get_train_dataset(tmp_path / written, **_SHUFFLE)


def test_a_path_that_is_not_nearly_right(text_dataset: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "coco-train").symlink_to(text_dataset(12))
    with pytest.raises(DatasetNotFoundError) as caught:
        get_train_dataset(tmp_path / "laion-400m", **_SHUFFLE)
    assert "Did you mean" not in str(caught.value)


def test_an_error_in_yaml_shows_the_line(tmp_path: Path) -> None:
    file = tmp_path / "mixture.yaml"
    file.write_text("splits:\n  train:\n    path: a\n   weight: 3\n")
    with pytest.raises(ConfigError, match=r"line 4.*\n       weight: 3\n *\^$"):
        get_train_dataset(file, **_SHUFFLE)


def test_a_bucket_whose_name_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r'invalid S3 bucket name "b": a name has 3 to 63'):
        get_savable_loader(get_train_dataset("s3://b/data", **_SHUFFLE))


def test_missing_packages_name_both_ways_to_install() -> None:
    said = r"pip install 'energon-grain\[parquet\]' \(in a clone: pip install"
    with pytest.raises(MissingPackageError, match=said), needed_for("reading"):
        raise ModuleNotFoundError("no", name="pyarrow")


def test_ragged_fields_and_whole_samples_in_batch_stack() -> None:
    images = [np.zeros((2, 3)), np.zeros((4, 3))]
    with pytest.raises(ValueError, match=r"^image: cannot stack arrays of different shapes \(2, 3\), \(4, 3\)"):
        batch_samples([{"image": image} for image in images], actions={"image": batch_stack})
    sample = TextSample(__key__="a", __restore_key__=(), text="")
    with pytest.raises(ValueError, match=r"whole samples \(TextSample\).*batch_stack\(\[sample\.image"):
        batch_stack([sample, sample])


class _Locked(DefaultTaskEncoder):
    def __init__(self) -> None:
        self.tools: dict[str, Any] = {"lock": threading.Lock()}

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample


def test_what_cannot_be_pickled_is_named(text_dataset: Callable[..., Path]) -> None:
    config = WorkerConfig(rank=0, world_size=1, num_workers=1, worker_type="process")
    dataset = get_train_dataset(text_dataset(12), task_encoder=_Locked(), worker_config=config, **_SHUFFLE)
    with pytest.raises(WorkerError, match=r"`_Locked\.tools` is a lock that cannot be pickled"):
        next(get_savable_loader(dataset))


def test_a_full_disk_says_what_to_do(text_dataset: Callable[..., Path], tmp_path: Path) -> None:
    shutil.copytree(text_dataset(600), tmp_path / "data", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    with size_limit(4000):
        done = run("prepare", tmp_path / "data", "--non-interactive", "--split-ratio=1", "--crude")
        with pytest.raises(OSError, match="too large") as caught:
            prepare_dataset(tmp_path / "data", split_ratio=(1, 0, 0), crude=True)
    assert done.exit_code == 1
    [note] = caught.value.__notes__
    assert re.search(
        r"^[\d,]+ MB are free on the disk of .*; the run needs about [\d,]+ MB in total for \d+ shards", note
    )
    assert "--no-sqlite" in note
    assert "set XDG_CACHE_HOME to a folder there" in note
    with (
        size_limit(60_000),
        pytest.raises(OSError, match=r"check the free space of the disk: '.*index.sqlite'") as caught,
    ):
        prepare_dataset(tmp_path / "data", split_ratio=(1, 0, 0), crude=True)
    needed = re.search(r"the run needs about ([\d,]+) MB in total for \d+ shards", caught.value.__notes__[0])
    assert needed is not None
    prepare_dataset(tmp_path / "data", split_ratio=(1, 0, 0), crude=True)
    with size_limit(2000), pytest.raises(OSError, match="too large") as caught:
        measure_dataset(tmp_path / "data", {"length": len})
    assert "a column takes 8 bytes a sample" in caught.value.__notes__[0]


def test_a_read_only_folder_says_that_it_can_be_read(
    text_dataset: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(text_dataset(12), tmp_path / "data", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))

    def refused(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refused)
        with pytest.raises(OSError, match="Read-only") as caught:
            prepare_dataset(tmp_path / "data", split_ratio=(1, 0, 0), crude=True)
    assert "Tars in a read-only folder can be read without preparation" in caught.value.__notes__[0]
    assert "XDG_CACHE_HOME" in caught.value.__notes__[0]


def test_a_full_cache_folder_is_named(
    text_dataset: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(text_dataset(600), tmp_path / "data", ignore=shutil.ignore_patterns(".nv-meta", "*.idx"))
    with size_limit(4000), pytest.raises(OSError, match="too large") as caught:
        get_savable_loader(get_train_dataset(tmp_path / "data", **_SHUFFLE))
    assert "XDG_CACHE_HOME" in caught.value.__notes__[0]


class _Skips(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__) % 3 == 0:
            raise SkipSample
        return sample


def test_another_number_of_lanes_after_drops_names_hosts_and_the_reason(text_dataset: Callable[..., Path]) -> None:
    state = get_savable_loader(get_train_dataset(text_dataset(96), lanes=6, **_SHUFFLE)).get_state()
    with get_savable_loader(get_train_dataset(text_dataset(96), lanes=6, task_encoder=_Skips(), **_SHUFFLE)) as loader:
        for _ in range(12):
            next(loader)
        dropped = loader.get_state()
    other = get_savable_loader(get_train_dataset(text_dataset(96), lanes=12, **_SHUFFLE))
    with pytest.raises(StateError, match=r"pass lanes=6, because the number of lanes is constant in a run$"):
        other.set_state(state)
    other.close()
    hosts = WorkerConfig(rank=0, world_size=4)
    other = get_savable_loader(get_train_dataset(text_dataset(96), lanes=12, worker_config=hosts, **_SHUFFLE))
    with pytest.raises(StateError, match=r"on one of \[1, 2, 3, 6\] hosts, as samples were dropped"):
        other.set_state(dropped)
    with pytest.raises(StateError, match=r"on one of \[1, 2, 3, 6\] hosts, if it filters, packs or groups"):
        other.set_state(state)
