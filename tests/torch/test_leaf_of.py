"""The dataset of each sample of a batch, as a tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from metadatasets import write_v2

from energon_grain.testing import make_text_dataset
from energon_grain_torch import (
    DefaultTaskEncoder,
    Sample,
    TaskEncoder,
    WorkerConfig,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    leaf_of,
)


@edataclass
class Sized(Sample):
    size: torch.Tensor


class Sizes(DefaultTaskEncoder):
    def encode_sample(self, sample: Any) -> Sized:
        return Sized.derive_from(sample, size=torch.tensor([len(sample.text)]))


class Dictionaries(TaskEncoder[Any, Any, Any, Any]):
    def batch(self, samples: list[Any]) -> Any:
        return {"leaf": torch.from_numpy(leaf_of(samples)), "of": [each.__subflavors__["of"] for each in samples]}


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    for name in ("web", "code"):
        make_text_dataset(tmp_path / name, n=30, shards=2)
    entries = [{"path": name, "weight": 1, "subflavors": {"of": name}} for name in ("web", "code")]
    return write_v2(tmp_path, train={"blend": entries})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("encoder", [Sizes, Dictionaries])
def test_batches_have_tensors(yaml: Path, encoder: type[Any], workers: int) -> None:
    dataset = get_train_dataset(
        yaml,
        batch_size=12,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=encoder(),
        worker_config=WorkerConfig(0, 1, workers),
    )
    with get_savable_loader(dataset) as loader:
        batch = next(loader)
        leaf, tags = (batch["leaf"], batch["of"]) if encoder is Dictionaries else (batch.leaf, None)
        of = tags or [tags["of"] for tags in batch.__subflavors__]
        assert leaf.dtype == torch.int32
        assert [loader.leaf_names[number] for number in leaf.tolist()] == of
        sums = torch.zeros(2).index_add_(0, leaf, torch.ones(12))
        assert sums.tolist() == [of.count("web"), of.count("code")]
        if encoder is Sizes:
            assert batch.to("meta").leaf.device.type == "meta"


def test_in_a_data_loader(yaml: Path) -> None:
    dataset = get_train_dataset(
        yaml, batch_size=12, shuffle_buffer_size=None, max_samples_per_sequence=None, task_encoder=Sizes()
    )
    batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)))
    assert batch.leaf.tolist() == [("web", "code").index(tags["of"]) for tags in batch.__subflavors__]
