"""Crude datasets with auxiliary stores end to end: from the metadataset to the samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from metadatasets import write_v2

from energon_grain import (
    ConfigError,
    Cooker,
    DefaultTaskEncoder,
    FatalSampleError,
    Sample,
    Stream,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_val_dataset,
    stateless,
)
from energon_grain.prepare import prepare_dataset
from energon_grain.testing import make_text_dataset, write_tars


@dataclass
class Cooked(Sample):
    """What cookers of this module make."""

    value: Any
    lazy: Any = None


@stateless
def cook(sample: Any, media: Any, files: Any) -> Cooked:
    value = media.get(sample["json"]["media"], sample) + files.get(sample["json"]["file"], sample)
    return Cooked(**basic_sample_keys(sample), value=value)


@stateless
@cooker(need_cache=True, need_primary=True)
def cook_late(sample: Any, cache: Any, primary: Any, media: Any, files: Any) -> Cooked:
    lazy = cache.get_lazy(media, sample["json"]["media"])
    return Cooked(**basic_sample_keys(sample), value=primary.get(".json", sample)["file"], lazy=lazy)


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


class LateEncoder(DefaultTaskEncoder):
    cookers = (Cooker(cook_late),)


def prepared(root: Path, samples: list[dict[str, Any]]) -> None:
    write_tars(root, samples, shards=2)
    prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0, sqlite=False)


@pytest.fixture(scope="module")
def metadataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aux")
    facts = [{"media": f"m/{i % 5:03d}.txt", "file": f"{i % 2}.txt"} for i in range(20)]
    facts[7]["media"] = "m/nothing.txt"
    prepared(folder / "main", [{"__key__": f"{i:03d}", "json": fact} for i, fact in enumerate(facts)])
    prepared(folder / "media", [{"__key__": f"m/{i:03d}", "txt": f"media {i}"} for i in range(5)])
    (folder / "files").mkdir()
    for number in range(2):
        (folder / "files" / f"{number}.txt").write_text(f" file {number}")
    make_text_dataset(folder / "typed", n=4, shards=1)
    for name, leaf in {"meta": "main", "typed": "typed"}.items():
        aux = {"media": "media", "files": "filesystem://files"}
        write_v2(folder, f"{name}.yaml", train={"path": leaf, "aux": aux})
    return folder / "meta.yaml"


def read(
    metadataset: Path,
    encoder: DefaultTaskEncoder,
    num_workers: int = 0,
    worker_type: Literal["thread", "process"] = "thread",
    handler: Callable[..., None] = lambda error, sample, sources: None,
) -> list[Cooked]:
    config = WorkerConfig(0, 1, num_workers, worker_type=worker_type, global_error_handler=handler)
    dataset = get_val_dataset(
        metadataset, split_part="train", batch_size=None, worker_config=config, task_encoder=encoder
    )
    with Stream.of(dataset) as stream:
        return list(stream)


def test_cookers_read_from_stores(metadataset: Path) -> None:
    errors: list[Exception] = []
    samples = read(metadataset, Encoder(), handler=lambda error, sample, sources: errors.append(error))
    assert [sample.__key__ for sample in samples] == [f"{i:03d}" for i in range(20) if i != 7]
    assert [sample.value for sample in samples[:7]] == [f"media {i % 5} file {i % 2}" for i in range(7)]
    assert [source.file_names for source in samples[4].__sources__ or ()] == [
        ("004.json",),
        ("m/004.txt",),
        ("0.txt",),
    ]
    assert [(type(error).__name__, "no file 'm/nothing.txt'" in str(error)) for error in errors] == [
        ("KeyNotFoundError", True)
    ]


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_change_nothing(metadataset: Path, worker_type: Literal["thread", "process"]) -> None:
    for encoder in (Encoder(), LateEncoder()):
        alone, helped = (read(metadataset, encoder, workers, worker_type) for workers in (0, 2))
        assert [(sample.__key__, sample.value, sample.__sources__) for sample in helped] == [
            (sample.__key__, sample.value, sample.__sources__) for sample in alone
        ]


def test_lazy_values_arrive_from_worker_processes(metadataset: Path) -> None:
    samples = read(metadataset, LateEncoder(), 2, "process")
    assert len(samples) == 20
    assert [sample.lazy.get(sample) for sample in samples[:5]] == [f"media {i}" for i in range(5)]
    assert (samples[3].__sources__ or ())[-1].index == "m/003.txt"
    assert samples[0].lazy == samples[5].lazy
    assert len({id(sample.lazy.ds.inner) for sample in samples}) == 1


def test_a_store_that_cannot_be_read_ends_the_iteration(metadataset: Path, tmp_path: Path) -> None:
    prepared(tmp_path / "media", [{"__key__": f"m/{i:03d}", "txt": f"media {i}"} for i in range(5)])
    with open(tmp_path / "media" / "shard_001.tar", "ab") as file:
        file.write(bytes(512))
    aux = {"media": "media", "files": f"filesystem://{metadataset.with_name('files')}"}
    file = write_v2(tmp_path, train={"path": str(metadataset.with_name("main")), "aux": aux})
    with pytest.raises(FatalSampleError, match=r"shard_001\.tar was indexed with \d+ bytes"):
        read(file, Encoder())


def test_what_does_not_fit_is_told_before_anything_is_read(metadataset: Path) -> None:
    class Wrong(DefaultTaskEncoder):
        cookers = (Cooker(lambda sample, media: sample),)

    with pytest.raises(ConfigError, match=r"main: the cooker .* takes `media` beside the sample, not `files`"):
        read(metadataset, Wrong())
    with pytest.raises(ConfigError, match=r"typed\.yaml: \$\.splits\.train\.aux: .*holds TextSamples"):
        read(metadataset.with_name("typed.yaml"), Encoder())


def test_cook_crude_sample_may_be_overridden(metadataset: Path) -> None:
    class Own(LateEncoder):
        def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: dict[str, Any]) -> Any:
            assert sorted(aux) == ["cache", "files", "media", "primary"]
            cooked = super().cook_crude_sample(sample, cooker, aux)
            cooked.value = "own " + cooked.value
            return cooked

    assert read(metadataset, Own())[1].value == "own 1.txt"
