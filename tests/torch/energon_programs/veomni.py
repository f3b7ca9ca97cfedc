"""The calls of VeOmni's `build_energon_dataset` and of the dataset that it wraps the result in."""

import contextlib
import os

from torch.utils.data import DataLoader, IterableDataset


class EnergonDataset(IterableDataset):
    def __init__(self, data, transform=None):
        self._data = data
        self._transform = transform

    def __len__(self):
        return len(self._data)

    def __iter__(self):
        from megatron.energon import WorkerConfig

        WorkerConfig.active_worker_config = None
        with contextlib.suppress(Exception):  # logged there
            self._data.worker_config.worker_activate(sample_index=0)
        try:
            for sample in self._data:
                yield sample if self._transform is None else self._transform(sample)
        finally:
            with contextlib.suppress(Exception):
                self._data.worker_config.worker_deactivate()

    def set_epoch(self, epoch):
        if hasattr(self._data, "set_epoch"):
            self._data.set_epoch(epoch)
        elif hasattr(self._data, "reset_state_deep"):
            self._data.reset_state_deep()


def build_energon_dataset(train_path, transform=None, virtual_epoch_length=0, num_workers=None):
    from megatron.energon import WorkerConfig, get_train_dataset

    if num_workers is None:
        num_workers = int(os.environ.get("TORCH_DATA_WORKERS", "1"))
    dataset = get_train_dataset(
        path=train_path,
        split_part="train",
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        virtual_epoch_length=virtual_epoch_length,
        repeat=True,
    )
    print(f"Dataset type: {type(dataset)} Dataset length: {len(dataset)}")
    return EnergonDataset(dataset, transform)


if __name__ == "__main__":
    dataset = build_energon_dataset("coco", lambda sample: sample.caption, virtual_epoch_length=30)
    assert len(dataset) == 30
    for workers in (0, 1):
        loader = DataLoader(dataset, batch_size=10, collate_fn=list, num_workers=workers)
        dataset.set_epoch(0)
        epoch = [text for batch in loader for text in batch]
        assert len(epoch) == 30
        assert all(text.startswith("Something") for text in epoch)
