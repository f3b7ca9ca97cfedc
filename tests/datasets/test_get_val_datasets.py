from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from metadatasets import v2

from energon_grain import ConfigError, DatasetNotFoundError, WorkerConfig, get_val_dataset, get_val_datasets


def keys(dataset: Any) -> list[str]:
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
        assert keys(dataset) == keys(dataset) == [f"{i:06d}" for i in range(n)]
    assert [getattr(reference, "name", None) for _, reference in pairs] == [None, "second"]
    assert getattr(pairs[0][1], "subflavors", None) == {"kind": "a"}
    together = get_val_dataset(content, batch_size=5, worker_config=WorkerConfig(0, 1))
    assert keys(together) == [key for dataset, _ in pairs for key in keys(dataset)]


def test_a_limit_counts_batches_of_each_leaf(text_dataset: Callable[..., Path]) -> None:
    leaf = {"path": str(text_dataset(12)), "split_part": "train"}
    pairs = get_val_datasets(metadataset(leaf, leaf), batch_size=5, limit=2, worker_config=WorkerConfig(0, 1))
    assert [len(keys(dataset)) for dataset, _ in pairs] == [10, 10]


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
