"""A program as a user writes it, for a type checker. `PACKAGE` is energon_grain, and then energon_grain_torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import numpy as np
from PACKAGE import (
    AugmentTaskEncoder,
    Batch,
    DefaultTaskEncoder,
    SavableDataLoader,
    SavableDataset,
    TaskEncoder,
    TextSample,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)


@dataclass(kw_only=True)
class Encoded(Batch):
    tokens: list[int]


@dataclass(kw_only=True)
class Padded(Batch):
    image: "np.ndarray[Any, Any]"


class Encoder(DefaultTaskEncoder[TextSample, Encoded, Padded, Padded]):
    def encode_sample(self, sample):  # a hook's argument is known without being written
        assert_type(sample, TextSample)
        return Encoded.derive_from(sample, tokens=[len(sample.text)])

    def batch(self, samples: list[Encoded]) -> Padded:
        return Padded.from_samples(samples)


class Generates(TaskEncoder[TextSample, Encoded, Padded, Padded]):
    def encode_sample(self, sample: TextSample) -> Iterator[Encoded]:
        yield Encoded.derive_from(sample, tokens=[])


class Untyped(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return sample.text


class Raised(AugmentTaskEncoder[TextSample, Encoded, Padded, Padded]): ...


train = get_train_dataset(
    "data", batch_size=8, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Encoder()
)
assert_type(train, SavableDataset[Padded])
loader = get_savable_loader(train)
assert_type(loader, SavableDataLoader[Padded])
for batch in loader:
    assert_type(batch, Padded)
    print(batch.image.shape, batch.imgae)  # error: "imgae"
for batch in train:
    assert_type(batch, Padded)
assert_type(next(get_loader(train)), Padded)
with get_loader(get_val_dataset("data", batch_size=None, task_encoder=Raised(Encoder()))) as validation:
    assert_type(validation, SavableDataLoader[Padded])
for dataset, leaf in get_val_datasets("data", batch_size=8, task_encoder=Generates(), limit=3):
    assert_type(dataset, SavableDataset[Padded])
    print(leaf.path)
made = get_val_dataset("data", batch_size=8, task_encoder=DefaultTaskEncoder(batch_type=Padded))
assert_type(made, SavableDataset[Padded])

# Who names no types has none, and no complaint either.
settings: dict[str, Any] = {"batch_size": 8}
for untyped in get_loader(get_val_dataset("data", task_encoder=Untyped(), **settings)):
    print(untyped.anything)
plain: SavableDataLoader = get_loader(get_val_dataset("data", batch_size=8))
assert_type(next(plain), Any)


def steps(loader: SavableDataLoader[Batch]) -> None:  # a loader of batches, whatever they are more precisely
    print(len(loader))


steps(loader)
get_val_dataset("data", batch_size=8, limt=3)  # error: "limt"
get_train_dataset("data", batch_size=8, shuffle_buffer_size=None)  # error: "max_samples_per_sequence"
get_val_dataset("data", batch_size="8")  # error: "batch_size"
