"""The calls of Megatron-Bridge's `data/energon/base_energon_datamodule.py`, with a run that is resumed."""

import logging

import torch
from megatron.energon import DefaultTaskEncoder, WorkerConfig, get_savable_loader, get_train_dataset


class DataParallel:
    """What a process group says."""

    def rank(self):
        return 0

    def size(self):
        return 1


class EnergonMultiModalDataModule:
    def __init__(self, path, micro_batch_size=1, num_workers=1, num_val_workers=None, dp=None, **kwargs):
        self.path = path
        self.micro_batch_size = micro_batch_size
        self.num_workers = num_workers
        self.num_val_workers = num_val_workers or num_workers
        self.dp = dp
        self.kwargs = kwargs
        self.train_dataloader_object = None
        self.val_dataloader_object = None

    def _build_worker_config(self, num_workers, split):
        if self.dp is None:
            logging.info("%s data loader uses the default worker config", split)
            return WorkerConfig.default_worker_config(num_workers)
        return WorkerConfig(
            rank=self.dp.rank(),
            world_size=self.dp.size(),
            num_workers=num_workers,
            data_parallel_group=None,
            worker_debug_path=None,
            worker_log_level=0,
        )

    def datasets_provider(self, worker_config, split):
        return get_train_dataset(
            self.path,
            batch_size=self.micro_batch_size,
            task_encoder=DefaultTaskEncoder(),
            worker_config=worker_config,
            packing_buffer_size=None,
            split_part=split,
            shuffle_buffer_size=100,
            max_samples_per_sequence=None,
            **self.kwargs,
        )

    def build(self):
        return self.train_dataloader(), self.val_dataloader()

    def train_dataloader(self):
        if self.train_dataloader_object:
            return self.train_dataloader_object
        worker_config = self._build_worker_config(self.num_workers, "train")
        dataset = self.datasets_provider(worker_config, "train")
        self.train_dataloader_object = get_savable_loader(dataset, worker_config=worker_config)
        return EnergonDataloader(self.train_dataloader_object)

    def val_dataloader(self):
        if self.val_dataloader_object is None:
            worker_config = self._build_worker_config(self.num_val_workers, "val")
            dataset = self.datasets_provider(worker_config, "val")
            self.val_dataloader_object = get_savable_loader(dataset, worker_config=worker_config)
        return EnergonDataloader(self.val_dataloader_object)


class EnergonDataloader:
    def __init__(self, dataloader):
        self._dataloader = dataloader
        self._iter = iter(cyclic_iter(dataloader))

    def __next__(self):
        return next(self._iter)

    def save_state(self):
        return self._dataloader.save_state_rank()

    def restore_state(self, state):
        self._dataloader.restore_state_rank(state)
        self._iter = iter(cyclic_iter(self._dataloader))


def cyclic_iter(loader):
    while True:
        yield from loader


def keys(loader, count):
    return [next(loader).__key__ for _ in range(count)]


if __name__ == "__main__":
    train, val = EnergonMultiModalDataModule("coco", micro_batch_size=4, dp=DataParallel()).build()
    keys(train, 7)
    assert next(val).image.shape == (4, 3, 32, 48)
    torch.save({"iteration": 7, "data": train.save_state()}, "checkpoint.pt")
    expected = keys(train, 20)

    train, _ = EnergonMultiModalDataModule(
        "coco", micro_batch_size=4, num_workers=1, shuffle_over_epochs_multiplier=1
    ).build()
    train.restore_state(torch.load("checkpoint.pt", weights_only=False)["data"])
    assert keys(train, 20) == expected
