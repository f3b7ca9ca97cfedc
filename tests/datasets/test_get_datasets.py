"""The entry points: what they give, older spellings, and arguments that are refused where they are given."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metadatasets import v2, write_v2

import energon_grain
import energon_grain_torch
from energon_grain import (
    BatchDataset,
    BlendDataset,
    BlendEpochizedDataset,
    ConfigError,
    Cooker,
    DatasetBlendMode,
    DatasetNotFoundError,
    DefaultTaskEncoder,
    EPath,
    SampleDecoder,
    SplitError,
    TextSample,
    VQASample,
    WorkerConfig,
    generic_batch,
    get_dataset_from_config,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
    load_dataset,
    traverse_metadataset,
)
from energon_grain.testing import make_crude_dataset, make_text_dataset

MakeDataset = Callable[..., Path]
TWO_HOSTS = WorkerConfig(rank=0, world_size=2)
USUAL: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}


def train(path: str | os.PathLike[str] = "s3://nowhere/data", **arguments: Any) -> Any:
    return get_train_dataset(path, **{**USUAL, **arguments})


def keys(dataset: Any, batches: int | None = None) -> list[str]:
    found: list[str] = []
    for number, batch in enumerate(dataset):
        if number == batches:
            break
        found += batch.__key__
    return found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, r"batch_size=0: expected a positive number"),
        ({"last_batch": "half"}, r"last_batch='half': expected 'keep', 'drop' or 'pad'"),
        ({"last_batch": "half", "batch_size": None}, r"last_batch='half'"),
        ({"last_batch": "pad", "batch_drop_last": True}, r"batch_drop_last=True and last_batch='pad' contradict"),
        ({"last_batch": "keep", "worker_config": TWO_HOSTS}, r"last_batch='keep' with 2 hosts.*'drop' or 'pad'"),
        ({"max_samples_per_sequence": 0}, r"max_samples_per_sequence=0: expected 1 or more, or None"),
        ({"shuffle_buffer_size": -1}, r"shuffle_buffer_size=-1: expected 0 or more, or None"),
        ({"parallel_shard_iters": 0}, r"parallel_shard_iters=0: expected 1 or more, or None"),
        ({"shuffle_over_epochs_multiplier": 0}, r"shuffle_over_epochs_multiplier=0: expected 1 or more, -1 .* or None"),
        ({"shuffle_over_epochs_multiplier": -2}, r"shuffle_over_epochs_multiplier=-2"),
        ({"virtual_epoch_length": -1}, r"virtual_epoch_length=-1 with repeat=True"),
        ({"virtual_epoch_length": 5, "repeat": False}, r"virtual_epoch_length=5 with repeat=False: .* endless"),
        ({"lanes": 0}, r"lanes=0: expected a positive number"),
        ({"subset": [3, 1]}, r"subset \[3, 1\]: 0 <= start < end must hold"),
    ],
)
def test_impossible_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"limit": 0}, r"limit=0: expected a positive number of batches, or None for all"),
        ({"batch_size": -3}, r"batch_size=-3"),
        ({"last_batch": "keep", "worker_config": TWO_HOSTS}, r"last_batch='keep' with 2 hosts"),
        ({"subset": "10%"}, r"subset '10%': expected a range \[start, end\] of two values"),
    ],
)
def test_impossible_arguments_of_validation(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_val_dataset("s3://nowhere/data", **{"batch_size": 2, **arguments})


@pytest.mark.parametrize("get", [get_train_dataset, get_val_dataset, get_val_datasets])
@pytest.mark.parametrize("backend", [energon_grain, energon_grain_torch])
def test_what_is_wrong_is_said_by_the_call(
    text_dataset: MakeDataset, tmp_path: Path, get: Callable[..., Any], backend: Any
) -> None:
    usual = USUAL if get is get_train_dataset else {"batch_size": 2, "split_part": "train"}
    called = getattr(backend, get.__name__)
    path = text_dataset(12)
    mixture = v2(train={"blend": [{"path": str(path), "split_part": "tran"}]})
    raw = tmp_path / "raw"
    raw.mkdir()
    for arguments, error, message in [
        ({"path": tmp_path / "nothing"}, DatasetNotFoundError, r"nothing: no such file or folder$"),
        ({"path": raw}, DatasetNotFoundError, r"run `energon-grain prepare .*raw`$"),
        ({"split_part": "tran"}, SplitError, r"no split part 'tran'; the parts are 'train'.*Did you mean 'train'\?$"),
        ({"path": mixture}, SplitError, r"^metadataset: \$.*blend\[0\]: .*Did you mean 'train'\?$"),
        ({"split_config": "x.yaml"}, SplitError, r"x\.yaml: no such split file; found split\.yaml"),
        ({"dataset_config": "x.yaml"}, ConfigError, r"x\.yaml: no such file"),
        ({"sample_type": VQASample}, ConfigError, r"contains TextSample, but sample_type=VQASample is requested$"),
        ({"sample_type": "TextSample"}, ConfigError, r"^sample_type='TextSample': expected a class"),
        ({"subset": [5, 13]}, ConfigError, r"^subset \[5, 13\]: split part 'train' of .*dataset has only 12 "),
        ({"batch_size": "32"}, ConfigError, r"^batch_size='32': expected a positive number"),
        ({"batch_size": True}, ConfigError, r"^batch_size=True: expected a positive number"),
        ({"split_part": 3}, ConfigError, r"^split_part=3: expected the name of a part"),
        ({"part_filter": "txt"}, ConfigError, r"^part_filter='txt': .*\['txt'\]"),
        ({"trusted_modules": "mine"}, ConfigError, r"^trusted_modules='mine': .*\['mine'\]"),
        ({"lanes": "x"}, ConfigError, r"^lanes='x'"),
        ({"batchsize": 3}, TypeError, rf"^{get.__name__}\(\) got .*'batchsize'\. Did you mean 'batch_size'\?$"),
    ]:
        with pytest.raises(error, match=message):
            called(**{"path": path, **usual, **arguments})


@pytest.mark.parametrize("backend", [energon_grain, energon_grain_torch])
def test_arguments_that_are_missing(backend: Any) -> None:
    with pytest.raises(
        TypeError, match=r"write shuffle_buffer_size=None, max_samples_per_sequence=None\. None for both"
    ):
        backend.get_train_dataset("nowhere", batch_size=2)
    with pytest.raises(TypeError, match=r"needs batch_size: write batch_size=32"):
        backend.get_val_dataset("nowhere")
    with pytest.raises(TypeError, match=r"'suffle_buffer_size'\. Did you mean 'shuffle_buffer_size'\?$"):
        backend.get_train_dataset("nowhere", batch_size=2, suffle_buffer_size=None, max_samples_per_sequence=None)


def test_data_in_a_store_are_not_looked_at() -> None:
    assert train("s3://nowhere/data")


@pytest.mark.parametrize("form", [str, Path, lambda path: Path(os.path.relpath(path))])
def test_paths(text_dataset: MakeDataset, form: Callable[[Any], Any]) -> None:
    path = text_dataset(12)
    assert keys(get_val_dataset(form(path), split_part="train", batch_size=5)) == [f"{i:06d}" for i in range(12)]
    assert keys(train(form(path)), 6) == keys(train(path), 6)


def test_lengths(text_dataset: MakeDataset) -> None:
    path = text_dataset(12)
    assert len(train(path, batch_size=5)) == 2, "whole batches that one pass over the data makes"
    assert len(train(path, batch_size=5, repeat=False)) == 3
    assert len(train(path, batch_size=5, repeat=False, batch_drop_last=True)) == 2
    assert len(train(path, batch_size=5, virtual_epoch_length=7)) == 7
    assert len(train(path, batch_size=None, repeat=False)) == 12
    assert len(get_val_dataset(path, split_part="train", batch_size=5, limit=2)) == 2
    assert len(get_val_dataset(path, split_part="train", batch_size=5, worker_config=TWO_HOSTS)) == 2


def test_a_whole_pass(text_dataset: MakeDataset) -> None:
    path = text_dataset(12)
    everything = [f"{i:06d}" for i in range(12)]
    once = train(path, batch_size=5, repeat=False)
    assert keys(once) != everything
    assert sorted(keys(once)) == everything
    assert keys(once) == keys(once), "each `iter` over a description starts from the beginning"
    assert keys(train(path, repeat=False, shuffle_over_epochs_multiplier=None)) == everything
    limited = get_val_dataset(path, split_part="train", batch_size=5, limit=2)
    assert keys(limited) == keys(limited) == everything[:10]
    assert keys(get_val_dataset(path, split_part="train", batch_size=4, subset=["25%", "75%"])) == everything[3:9]


def test_seeds(text_dataset: MakeDataset) -> None:
    path = text_dataset(24)
    orders = [
        keys(train(path, seed=seed, worker_config=WorkerConfig(0, 1, seed_offset=offset)), 12)
        for seed, offset in ((0, 0), (1, 0), (0, 1))
    ]
    assert len({tuple(order) for order in orders}) == 3


def test_single_samples(text_dataset: MakeDataset) -> None:
    samples = list(train(text_dataset(12), batch_size=None, repeat=False))
    assert len(samples) == 12
    assert all(type(sample) is TextSample for sample in samples)


def test_files_that_change_between_the_call_and_the_first_batch_are_read_again(text_dataset: MakeDataset) -> None:
    path = text_dataset(12, 2)
    split = path / ".nv-meta" / "split.yaml"
    both = split.read_text()
    dataset, copied = (get_val_dataset(path, split_part="train", batch_size=2) for _ in range(2))
    split.write_text(both.replace(", 'shard_001.tar'", ""))
    assert keys(dataset) == [f"{number:06d}" for number in range(6)]
    split.write_text(both)
    assert keys(dataset) == keys(pickle.loads(pickle.dumps(copied))) == [f"{number:06d}" for number in range(12)]


def val_keys(dataset: Any) -> list[str]:
    return [key for batch in dataset for key in batch.__key__]


def metadataset(*leaves: dict[str, Any]) -> dict[str, Any]:
    """A blend of leaves, as the content of a file."""
    return v2(val={"blend": list(leaves)})


def test_each_leaf_is_a_dataset_by_itself(text_dataset: Callable[..., Path]) -> None:
    a, b = text_dataset(12), text_dataset(7)
    content = metadataset(
        {"path": str(a), "split_part": "train", "weight": 9, "subflavors": {"kind": "a"}},
        {"path": str(b), "split_part": "train", "name": "second"},
    )
    pairs = get_val_datasets(content, batch_size=5, worker_config=WorkerConfig(0, 1))
    assert [len(dataset) for dataset, _ in pairs] == [3, 2]
    for (dataset, reference), root, n in zip(pairs, (a, b), (12, 7), strict=True):
        assert (reference.path, reference.split_part) == (str(root), "train")
        assert val_keys(dataset) == val_keys(dataset) == [f"{i:06d}" for i in range(n)]
    assert [getattr(reference, "name", None) for _, reference in pairs] == [None, "second"]
    assert getattr(pairs[0][1], "subflavors", None) == {"kind": "a"}
    together = get_val_dataset(content, batch_size=5, worker_config=WorkerConfig(0, 1))
    assert val_keys(together) == [key for dataset, _ in pairs for key in val_keys(dataset)]


def test_a_limit_counts_batches_of_each_leaf(text_dataset: Callable[..., Path]) -> None:
    leaf = {"path": str(text_dataset(12)), "split_part": "train"}
    pairs = get_val_datasets(metadataset(leaf, leaf), batch_size=5, limit=2, worker_config=WorkerConfig(0, 1))
    assert [len(val_keys(dataset)) for dataset, _ in pairs] == [10, 10]


def test_hosts_share_each_leaf_and_pad(text_dataset: Callable[..., Path]) -> None:
    content = metadataset({"path": str(text_dataset(7)), "split_part": "train"})
    seen: list[str] = []
    for host in range(2):
        [(dataset, _)] = get_val_datasets(content, batch_size=2, worker_config=WorkerConfig(host, 2))
        for batch in dataset:
            seen += [key for key, valid in zip(batch.__key__, batch.__valid__, strict=True) if valid]
    assert sorted(seen) == [f"{i:06d}" for i in range(7)]


def test_a_dataset_by_itself_is_one_leaf(text_dataset: Callable[..., Path]) -> None:
    [(dataset, reference)] = get_val_datasets(
        text_dataset(12), split_part="train", subset=["0%", "50%"], batch_size=None, worker_config=WorkerConfig(0, 1)
    )
    assert [sample.__key__ for sample in dataset] == [f"{i:06d}" for i in range(6)]
    assert str(reference.subset) == "[0%, 50%]"


def test_mistakes_are_named(text_dataset: Callable[..., Path]) -> None:
    with pytest.raises(DatasetNotFoundError, match="nowhere"):
        get_val_datasets(metadataset({"path": "nowhere"}), batch_size=1)
    with pytest.raises(ConfigError, match="contradict"):
        get_val_datasets(text_dataset(7), split_part="train", batch_size=1, batch_drop_last=True, last_batch="pad")


HOST = WorkerConfig(rank=0, world_size=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    for name in ("a", "b"):
        make_text_dataset(root / name, n=30, shards=3, seed=ord(name))
    make_crude_dataset(root / "crude", n=10)
    return root


def test_the_datasets_of_a_blend(folder: Path) -> None:
    nested = {"blend": [{"path": "a", "weight": 3, "subflavors": {"k": 1}}, {"path": "b", "weight": 1}]}
    write_v2(folder, "inner.yaml", train=nested)
    path = write_v2(folder, "outer.yaml", train={"blend": [{"path": "inner.yaml"}, {"path": "b"}]})
    loader = load_dataset(path)
    loader.post_initialize()
    found = loader.get_datasets(
        training=True, split_part="train", worker_config=HOST, subflavors={"by": "me"}, max_samples_per_sequence=10
    )
    assert found.blend_mode is DatasetBlendMode.DATASET_WEIGHT
    assert [float(each.weight or 0) for each in found.datasets] == [0.375, 0.125, 0.5]
    sample = next(iter(found.datasets[0].dataset))
    assert isinstance(sample, TextSample)
    assert sample.__subflavors__ == {"k": 1, "by": "me"}
    # They are what a task encoder builds a stream of.
    encoder = DefaultTaskEncoder()
    dataset = encoder.build_train_datasets(
        datasets=found.datasets, worker_config=HOST, batch_size=10, blend_mode=found.blend_mode
    )
    counts = Counter(
        sources[0].dataset_path.name
        for batch, _ in zip(dataset, range(48), strict=False)
        for sources in batch.__sources__
    )
    assert counts["a"] == pytest.approx(180, abs=20)
    assert loader.traverse(split_part="train") == traverse_metadataset(path, split_part="train")


def test_the_datasets_of_an_epochized_blend_and_of_one_dataset(folder: Path) -> None:
    node = {"blend_epochized": [{"path": "a", "repetitions": 2}, {"path": "b"}]}
    loader = load_dataset(write_v2(folder, "epochs.yaml", val=node))
    found = loader.get_datasets(training=False, split_part="val", worker_config=HOST)
    assert found.blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS
    assert [each.repetitions for each in found.datasets] == [2, 1]
    assert [sample.__key__ for sample in found.datasets[0].dataset] == [f"{number:06d}" for number in range(20, 30)]
    single = load_dataset(folder / "a").get_datasets(
        training=False, split_part="train", worker_config=HOST, subset=[5, 8], decoder=None
    )
    assert single.blend_mode is DatasetBlendMode.NONE
    [sample, *_] = samples = list(single.datasets[0].dataset)
    assert len(samples) == 3
    assert isinstance(sample.text, bytes)
    with pytest.raises(TypeError, match=r"get_datasets\(\) got an unexpected keyword argument 'shuffle'"):
        loader.get_datasets(training=False, split_part="val", worker_config=HOST, shuffle=True)


def test_preparing_a_document_writes_its_joins(folder: Path) -> None:
    for name in ("left", "right"):
        make_text_dataset(folder / name, n=5)
    loader = load_dataset(write_v2(folder, "join.yaml", train={"join": [{"path": "left"}, {"path": "right"}]}))
    [index] = loader.prepare(split_part="train")
    assert isinstance(index, EPath)
    assert index.is_file()
    assert index.parent == EPath(folder / "join.yaml.cache")
    assert list(load_dataset(folder / "a").prepare()) == []


def test_one_dataset_from_its_configuration(folder: Path) -> None:
    dataset = get_dataset_from_config(
        folder / "a", split_part="val", training=False, worker_config=HOST, subflavors={"k": 1}
    )
    samples = list(dataset.build())
    assert [sample.__key__ for sample in samples] == [f"{number:06d}" for number in range(20, 30)]
    assert samples[0].__subflavors__ == {"k": 1}
    assert len(dataset) == 10
    shuffled = get_dataset_from_config(EPath(folder / "a"), worker_config=HOST, shuffle_over_epochs=-1)
    with get_loader(shuffled) as loader:
        assert next(loader).__key__ in {f"{number:06d}" for number in range(20)}
    crude = get_dataset_from_config(folder / "crude", worker_config=HOST, part_filter=["txt"])
    assert {"txt"} == {name for name in next(iter(crude)) if not name.startswith("__")}
    whole = get_dataset_from_config(folder / "a", worker_config=HOST, decoder=SampleDecoder(), subset=["0%", "50%"])
    assert len(whole) == 10
    with pytest.raises(DatasetNotFoundError, match="nowhere"):
        get_dataset_from_config(folder / "nowhere", worker_config=HOST)
    with pytest.raises(ConfigError, match="sample_type"):
        list(get_dataset_from_config(folder / "a", worker_config=HOST, sample_type=energon_grain.VQASample))


def test_mixing_what_was_loaded(folder: Path) -> None:
    parts: list[Any] = [get_dataset_from_config(folder / name, worker_config=HOST) for name in "ab"]
    names = [sample.__sources__[0].dataset_path.name for sample, _ in zip(BlendDataset(parts), range(40), strict=False)]
    assert names.count("a") == pytest.approx(20, abs=10)
    same = get_train_dataset(
        load_dataset(folder / "a"), batch_size=5, shuffle_buffer_size=10, max_samples_per_sequence=5
    )
    assert len(next(iter(same)).text) == 5


class Encoder(DefaultTaskEncoder):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"worker_config": 4}, r"worker_config=4: expected a WorkerConfig"),
        ({"task_encoder": Encoder}, r"task_encoder=Encoder: expected an instance, got a class: Encoder\(\)"),
        ({"task_encoder": len}, "expected an instance of a subclass of TaskEncoder"),
        ({"task_encoder": Encoder(decoder="rgb8")}, r"Encoder\.decoder = 'rgb8': expected a SampleDecoder"),
        ({"task_encoder": Encoder(decoder=SampleDecoder)}, "expected a SampleDecoder"),
        ({"task_encoder": Encoder(cookers=Cooker(len))}, r"Encoder\.cookers = .*: expected a list of cookers"),
        ({"task_encoder": Encoder(cookers=[len])}, "expected a list of cookers"),
        (
            {"task_encoder": Encoder(build_cook_crude_sample=len)},
            r"Encoder\.build_cook_crude_sample is never called",
        ),
        ({"seed": "7"}, r"seed='7': expected a whole number"),
    ],
)
def test_what_is_something_else_is_told_where_it_is_given(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_train_dataset("none", batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None, **arguments)
    with pytest.raises(ConfigError, match=message):
        get_val_dataset("none", batch_size=2, **arguments)


class Misspelt(DefaultTaskEncoder):
    def encode_sampel(self, sample: Any) -> Any:
        raise NotImplementedError

    def encode_batch(self, batch: Any) -> Any:
        return self.encode_batchs(batch)

    def encode_batchs(self, batch: Any) -> Any:  # a part of the hook, which is there
        return batch


def test_a_method_that_is_nearly_called_as_a_hook_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_text_dataset(tmp_path / "data", n=8)
    get_val_dataset(tmp_path / "data", batch_size=2, task_encoder=Encoder())
    assert not caplog.messages
    get_val_dataset(tmp_path / "data", batch_size=2, task_encoder=Misspelt())
    (message,) = caplog.messages
    assert message == "Misspelt.encode_sampel is not a hook, so it is never called. Did you mean 'encode_sample'?"


def test_none_is_no_number_where_it_has_no_meaning() -> None:
    with pytest.raises(ConfigError, match="virtual_epoch_length=None: expected a whole number of batches, or 0"):
        get_train_dataset(
            "none",
            batch_size=2,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            virtual_epoch_length=None,  # type: ignore[arg-type]
        )


@pytest.mark.parametrize(
    "numbers",
    [
        {"batch_size": np.int64(2)},
        {"batch_size": 2, "lanes": np.int64(6)},
        {"batch_size": 2, "packing_buffer_size": np.int32(3)},
        {"batch_size": 2, "virtual_epoch_length": np.int32(3)},
        {"batch_size": 2, "worker_config": WorkerConfig(*np.array([0, 1, 1]), seed_offset=np.int64(1))},  # type: ignore[arg-type]
    ],
)
def test_numbers_of_numpy_are_numbers(text_dataset: Callable[..., Path], numbers: dict[str, Any]) -> None:
    class Packs(DefaultTaskEncoder):
        def select_samples_to_pack(self, samples: Any) -> Any:
            return [samples]

        def pack_selected_samples(self, samples: Any) -> Any:
            return samples[0]

    dataset = get_train_dataset(
        text_dataset(20), shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Packs(), **numbers
    )
    with get_savable_loader(dataset) as loader, get_savable_loader(dataset) as other:
        next(loader)
        other.restore_state_rank(json.loads(json.dumps(loader.save_state_rank())))
        assert next(loader).__key__ == next(other).__key__


def test_mixtures_of_numbers_of_numpy(text_dataset: Callable[..., Path]) -> None:
    samples = get_train_dataset(
        text_dataset(20), batch_size=None, shuffle_buffer_size=None, max_samples_per_sequence=None, repeat=False
    )
    for mixture in (
        BlendDataset((samples, np.int64(3)), (samples, 1)),  # type: ignore[arg-type]
        BlendDataset(samples, samples, schedule=[(np.int64(0), np.array([1, 2])), (np.int64(4), [1, 0])]),  # type: ignore[list-item]
        BlendEpochizedDataset((samples, np.int32(2)), (samples, np.float32(0.7))),  # type: ignore[arg-type]
    ):
        with get_savable_loader(BatchDataset(mixture, 4, generic_batch)) as loader:
            next(loader)
            assert json.loads(json.dumps(loader.save_state_rank())) == loader.save_state_rank()


def test_a_seed_of_numpy_is_a_seed(text_dataset: Callable[..., Path]) -> None:
    def loader(seed: Any) -> Any:
        return get_savable_loader(
            get_train_dataset(
                text_dataset(8), batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None, seed=seed
            )
        )

    with loader(np.int64(7)) as one, loader(7) as other:
        assert next(one).__key__ == next(other).__key__
        other.restore_state_rank(one.save_state_rank())


VALIDATION: dict[str, Any] = {"batch_size": 2}
TRAINING: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
ALL = [(get_train_dataset, TRAINING), (get_val_dataset, VALIDATION), (get_val_datasets, VALIDATION)]


@pytest.mark.parametrize(("get", "usual"), ALL)
def test_they_end_in_the_decoder(get: Any, usual: dict[str, Any]) -> None:
    encoder = DefaultTaskEncoder()
    with pytest.warns(DeprecationWarning, match="image_decode, av_decode: deprecated; set `decoder") as caught:
        get("s3://nowhere/data", task_encoder=encoder, image_decode="pil", av_decode="pyav", **usual)
    assert encoder.decoder == SampleDecoder(image_decode="pil", av_decode="pyav")
    assert caught[0].filename == __file__
    assert DefaultTaskEncoder.decoder == SampleDecoder(), "other encoders keep the default"
    with pytest.warns(DeprecationWarning, match="image_decode"):
        get("s3://nowhere/data", task_encoder=encoder, image_decode="pil", av_decode="pyav", **usual)  # the same again


def test_programs_without_a_name_are_warned() -> None:
    """As code that `exec` runs with names of its own."""
    names = {"get": get_train_dataset, "usual": TRAINING}
    with pytest.warns(DeprecationWarning, match="auto_decode is deprecated"):
        exec("dataset = get('s3://nowhere/data', auto_decode=False, **usual)", names)


def test_no_decoding() -> None:
    encoder = DefaultTaskEncoder()
    with pytest.warns(DeprecationWarning, match="auto_decode is deprecated"):
        get_train_dataset("s3://nowhere/data", task_encoder=encoder, auto_decode=False, image_decode="pil", **TRAINING)
    assert encoder.decoder is None


def test_a_handler_has_no_effect() -> None:
    encoder = DefaultTaskEncoder()
    with pytest.warns(
        DeprecationWarning, match=r"handler is ignored; use WorkerConfig\(global_error_handler=…\)"
    ) as caught:
        get_train_dataset("s3://nowhere/data", task_encoder=encoder, handler=print, **TRAINING)
    assert len(caught) == 1
    assert encoder.decoder is DefaultTaskEncoder.decoder


def test_a_decoder_of_its_own_is_not_replaced() -> None:
    class Encoder(DefaultTaskEncoder):
        decoder = SampleDecoder(image_decode="l8")

    with (
        pytest.warns(DeprecationWarning, match="image_decode"),
        pytest.raises(ConfigError, match=r"Encoder has its own decoder .*which this would replace"),
    ):
        get_train_dataset("s3://nowhere/data", task_encoder=Encoder(), image_decode="pil", **TRAINING)


def test_no_warning_without_them() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_train_dataset("s3://nowhere/data", **TRAINING)


def test_other_keywords_are_unknown() -> None:
    with pytest.raises(TypeError, match=r"argument 'xyz'\. Known keywords: path, split_part, "):
        get_train_dataset("s3://nowhere/data", xyz=3, **TRAINING)  # type: ignore[call-arg]
