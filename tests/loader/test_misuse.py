"""What a loader or a dataset says of itself and of its images, and when it is used for what it is not."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import pytest
from patience import PATIENCE_S
from torch.utils.data import DataLoader

import energon_grain
import energon_grain_torch
from energon_grain import (
    BatchDataset,
    BlendDataset,
    ConfigError,
    TaskEncoder,
    TextWebdataset,
    WorkerConfig,
    generic_batch,
    get_loader,
    get_train_dataset,
    load_dataset,
)
from energon_grain.loader import BatchIterDataset, BatchMapDataset, to_device
from energon_grain_torch import WorkerConfig as TorchWorkerConfig

Train = Callable[..., Any]


@pytest.fixture(params=["core", "device", "torch"])
def loader(train: Train, request: pytest.FixtureRequest) -> Any:
    if request.param == "torch":
        return energon_grain_torch.get_loader(train())
    return get_loader(train()) if request.param == "core" else to_device(get_loader(train()))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_loader_is_not_copied(loader: Any, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"Loader\(\S+/train\) cannot be pickled or copied, .* send the dataset"):
        copied(loader)
    gc.collect()  # an exception out of a half-made copy's `__del__` would fail the test
    next(loader)


def test_a_loader_is_not_wrapped(loader: Any) -> None:
    with pytest.raises(TypeError, match=r"no random access: iterate over it"):
        next(iter(DataLoader(loader, batch_size=None)))


def test_grain_takes_no_description_for_a_source(train: Train) -> None:
    with pytest.raises(TypeError, match=r"no samples by index.* BatchMapDataset\(dataset\) is a MapDataset"):
        grain.MapDataset.source(train())[0]


def test_a_closed_loader_says_where_it_was_closed(train: Train) -> None:
    for get in (get_loader, energon_grain_torch.get_loader):
        loader = get(train())
        next(loader)
        loader.close()
        with pytest.raises(ValueError, match=r"closed at .*test_misuse\.py:\d+; make a new one and restore the state"):
            next(loader)
        assert loader.save_state_rank()["step"] == 1
        with get(train()) as loader:
            next(loader)
        with pytest.raises(ValueError, match=r"closed at .*test_misuse\.py:\d+"):
            next(loader)


class Slow(TaskEncoder):
    def encode_sample(self, sample: Any) -> Any:
        time.sleep(0.0005)
        return sample


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("place", [lambda loader: loader, to_device], ids=["loader", "device"])
def test_threads_share_a_loader(train: Train, num_workers: int, place: Callable[[Any], Any]) -> None:
    def fresh() -> Any:
        return get_loader(train(n=96, repeat=False, task_encoder=Slow(), num_workers=num_workers))

    expected = sorted(tuple(batch.__key__) for batch in fresh())
    loader = place(fresh())
    seen: list[Any] = []
    failed: list[BaseException] = []

    def drain() -> None:
        try:
            while True:
                seen.append(tuple(next(loader).__key__))
        except StopIteration:
            return
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert sorted(seen) == expected
    loader.close()


def test_datasets_and_loaders_are_named_in_one_line(train: Train, loader: Any) -> None:
    dataset = train()
    assert repr(loader).endswith("Loader(" + repr(dataset).removeprefix("BatchDataset("))
    name = repr(dataset).removeprefix("BatchDataset(").removesuffix(")")
    assert name.endswith("/train")
    assert repr(BlendDataset(*[(dataset, 1)] * 7)) == f"BlendDataset({', '.join([name] * 4)}, … 3 more)"
    assert repr(BatchIterDataset(dataset)) == str(BatchIterDataset(dataset)) == f"BatchIterDataset({dataset!r})"
    assert repr(BatchMapDataset(dataset)) == f"BatchMapDataset({dataset!r})"


def test_a_dataset_says_what_to_give_it_to(train: Train) -> None:
    with pytest.raises(TypeError, match=r"no samples by index.* get_loader"):
        train()[0]
    for name in ("get_state", "state_dict", "restore_state_rank"):
        with pytest.raises(AttributeError, match=f"no {name}, .* get_savable_loader"):
            getattr(train(), name)
    assert not hasattr(train(), "state_dict")
    with pytest.raises(AttributeError, match="has no attribute 'dateset'"):
        train().dateset  # noqa: B018


def test_a_loader_has_no_batches_by_number(loader: Any) -> None:
    with pytest.raises(TypeError, match=r"Loader\(\S+/train\) has no random access: iterate over it directly"):
        loader[0]


NO_DATASET: list[tuple[Callable[[Any], Any], str]] = [
    (lambda dataset: get_loader(dataset), "got a SavableDataLoader; pass the dataset that it was made from"),
    (lambda dataset: [(dataset, None)], "got a list; pass its datasets one by one"),
    (lambda dataset: "s3://bucket/data", "got a str; pass it to get_train_dataset"),
    (lambda dataset: load_dataset("s3://bucket/data"), "got a DatasetLoader; pass it to get_train_dataset"),
    (
        lambda dataset: TextWebdataset(
            "s3://bucket/data",
            split_part="train",
            training=True,
            worker_config=WorkerConfig(rank=0, world_size=1),
            field_map={"text": "txt"},
        ),
        r"got a TextWebdataset; pass the result of its build\(\)",
    ),
    (
        lambda dataset: BatchMapDataset(dataset),
        "got a BatchMapDataset; pass the result of get_train_dataset or of another",
    ),
    (lambda dataset: None, "got a NoneType; pass the result of get_train_dataset or of another"),
]


@pytest.mark.parametrize(("make", "message"), NO_DATASET)
@pytest.mark.parametrize(
    "use",
    [
        get_loader,
        energon_grain_torch.get_loader,
        BatchIterDataset,
        BatchMapDataset,
        lambda value: BatchDataset(value, 2, generic_batch),
        lambda value: BlendDataset((value, 1)),
    ],
)
def test_what_is_no_dataset(train: Train, use: Callable[[Any], Any], make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"expected a dataset, {message}"):
        use(make(train()))


def test_a_mixture_does_not_read_what_is_no_list_of_datasets(train: Train) -> None:
    """A loader can be iterated over too, for ever."""
    for made in (get_loader(train()), energon_grain_torch.get_loader(train())):
        with pytest.raises(ConfigError, match="BlendDataset: expected a dataset, got a SavableDataLoader; pass the d"):
            BlendDataset(made)
        assert made.save_state_rank()["step"] == 0
    assert repr(BlendDataset(each for each in [train()])).startswith("BlendDataset(")


def test_what_is_no_loader(train: Train) -> None:
    with pytest.raises(ConfigError, match=r"got a SeededDataset; pass get_savable_loader\(dataset\)"):
        to_device(train())
    with pytest.raises(ConfigError, match=r"energon_grain\.get_\w+, got a energon_grain_torch\.SavableDataLoader"):
        to_device(energon_grain_torch.get_loader(train()))


def test_what_is_no_path(train: Train) -> None:
    usual: dict[str, Any] = {"batch_size": 2, "shuffle_buffer_size": None, "max_samples_per_sequence": None}
    with pytest.raises(
        ConfigError, match=r"path=BatchDataset\(\S+\): expected the path .* pass this dataset to get_loader"
    ):
        get_train_dataset(train(), **usual)
    with pytest.raises(ConfigError, match="path=7: expected the path of a dataset or metadataset"):
        get_train_dataset(7, **usual)  # type: ignore[arg-type]


def test_a_factory_is_no_list_of_samples() -> None:
    factory: Any = NO_DATASET[4][0](None)
    message = r"TextWebdataset\(path=s3://bucket/data\) is a description .*the dataset from its `build\(\)`"
    with pytest.raises(TypeError, match=message):
        factory[0]
    with pytest.raises(TypeError, match=message):
        next(iter(factory))


PROGRAM = """
import logging, sys
from energon_grain import DefaultTaskEncoder, SampleDecoder, get_savable_loader, get_val_dataset
from energon_grain.testing import make_captioning_dataset

lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(f"{record.levelname} {record.getMessage()}")
logging.getLogger("energon_grain").addHandler(handler)
logging.getLogger("energon_grain").setLevel(logging.INFO)
make_captioning_dataset("captions", n=16)


def hints(decoder=None):
    encoder = DefaultTaskEncoder()
    if decoder is not None:
        encoder.decoder = decoder
    with get_savable_loader(get_val_dataset("captions", batch_size=1, task_encoder=encoder)) as loader:
        next(loader)
    found = [line for line in lines if "image_decode='rgb8'" in line]
    assert all(line.startswith("INFO") for line in found) and not any(line.startswith("WARNING") for line in lines)
    lines.clear()
    return len(found)


import jax

print(hints(SampleDecoder(image_decode="torchrgb")), hints(SampleDecoder(image_decode="rgb8")), hints(), hints())
"""


def test_the_default_layout_is_hinted_at_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", "0", "1", "0"]), done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(params=["core", "torch"])
def counted(request: pytest.FixtureRequest, train: Train) -> Callable[..., Any]:
    """`loader(**options)`: of either package."""

    def make(rank: int = 0, **options: Any) -> Any:
        dataset = train(repeat=False, rank=rank, world_size=1 + rank, **options)
        if request.param == "core":
            return energon_grain.get_loader(dataset)
        config = TorchWorkerConfig(rank, 1 + rank, worker_type="thread")
        return energon_grain_torch.get_loader(dataset, worker_config=config)

    return make


def test_batches_and_state_are_those_of_a_plain_loop(counted: Callable[..., Any]) -> None:
    plain, shown, file = counted(), counted(), io.StringIO()
    expected = [list(batch.__key__) for _ in range(2) for batch in plain]
    found = []
    for batch in shown.progress(every_s=0, file=file):
        found.append(list(batch.__key__))
        if len(found) == 5:
            break
    assert shown.save_state_rank()["step"] == 5
    for _ in range(2):  # the rest of the pass, and the next one
        found += [list(batch.__key__) for batch in shown.progress(every_s=0, file=file)]
    assert found == expected
    assert shown.save_state_rank() == plain.save_state_rank()
    lines = file.getvalue().splitlines()
    assert len(lines) == len(expected)
    told = r"epoch {}, step {} of 14: [0-9,]+ samples/s, waited [0-9]+%, [0-9:]+ left"
    for line, place in ((lines[0], (1, 1)), (lines[5], (1, 6)), (lines[-1], (2, 14))):
        assert re.fullmatch(told.format(*place), line), line


def test_a_line_is_written_now_and_then_and_at_the_end(counted: Callable[..., Any]) -> None:
    file = io.StringIO()
    assert len(list(counted().progress(file=file))) == 14
    assert [line.partition(":")[0] for line in file.getvalue().splitlines()] == ["epoch 1, step 14 of 14"]


def test_other_hosts_are_quiet(counted: Callable[..., Any]) -> None:
    file = Terminal()
    assert list(counted(rank=1).progress(file=file))
    assert file.getvalue() == ""


def test_on_terminals_it_stays_one_line(counted: Callable[..., Any]) -> None:
    file = Terminal()
    for number, _ in enumerate(counted().progress(file=file)):
        if number == 3:
            print("loss 0.5")
    assert "step 14 of 14" in file.getvalue()
    assert "loss 0.5\n" in file.getvalue()  # above the line
    assert file.getvalue().endswith("\x1b[?25h")  # the cursor is there again


def test_endless_streams_tell_how_often_the_data_came_by(train: Train) -> None:
    file = io.StringIO()
    loader = energon_grain.get_loader(train())
    for number, _ in enumerate(loader.progress(every_s=0, file=file)):
        if number == 19:
            break
    assert re.match(r"step 20 \(epoch 1.54\): ", file.getvalue().splitlines()[-1])
