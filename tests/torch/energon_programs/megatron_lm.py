"""The calls of Megatron-LM's `examples/multimodal/dataloader_provider.py` and of the loop that trains with it.

Batches of packs, validation that is repeated and cut, one saved file a data-parallel rank, and a loader that is wrapped
into an iterator without an end.
"""

import dataclasses
import traceback
from pathlib import Path

import torch
from megatron.energon import (
    Batch,
    CaptioningSample,
    DefaultTaskEncoder,
    LimitDataset,
    RepeatDataset,
    Sample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_datasets,
)
from megatron.energon.task_encoder.base import stateless

ITERATIONS = 12


@dataclasses.dataclass
class Tokenized(Sample):
    __subflavors__: dict
    image: torch.Tensor
    tokens: torch.Tensor


@dataclasses.dataclass
class Packed(Sample):
    __subflavors__: dict
    images: list
    tokens: torch.Tensor
    lengths: list


@dataclasses.dataclass
class PackedBatch(Batch):
    __subflavors__: list
    images: torch.Tensor
    tokens: torch.Tensor
    lengths: list


class TaskEncoder(DefaultTaskEncoder[CaptioningSample, Tokenized, PackedBatch, dict]):
    def __init__(self):
        super().__init__()
        self.length = 64

    @stateless(restore_seeds=True)
    def encode_sample(self, sample):
        assert sample.image.mode == "RGB", "image_decode='pil'"
        noise = int(torch.randint(256, ()))
        return Tokenized(
            __key__=sample.__key__,
            __restore_key__=sample.__restore_key__,
            __subflavors__=sample.__subflavors__,
            image=torch.full((3, 4, 4), noise / 255),
            tokens=torch.tensor(list(sample.caption.encode()))[: self.length],
        )

    def select_samples_to_pack(self, samples):
        packs, used = [[]], 0
        for sample in sorted(samples, key=lambda each: len(each.tokens)):
            if used + len(sample.tokens) > self.length:
                packs.append([])
                used = 0
            packs[-1].append(sample)
            used += len(sample.tokens)
        return packs

    @stateless
    def pack_selected_samples(self, samples):
        tokens = torch.cat([sample.tokens for sample in samples])
        return Packed(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),
            __subflavors__=samples[0].__subflavors__,
            images=[sample.image for sample in samples],
            tokens=torch.nn.functional.pad(tokens, (0, self.length - len(tokens))),
            lengths=[len(sample.tokens) for sample in samples],
        )

    def batch(self, samples):
        return PackedBatch(
            __key__=[sample.__key__ for sample in samples],
            __restore_key__=[sample.__restore_key__ for sample in samples],
            __subflavors__=[sample.__subflavors__ for sample in samples],
            images=torch.stack([image for sample in samples for image in sample.images]),
            tokens=torch.stack([sample.tokens for sample in samples]),
            lengths=[sample.lengths for sample in samples],
        )

    def encode_batch(self, batch):
        return dataclasses.asdict(batch)


def print_error_handler(exc, key, *_):
    traceback.print_exc()
    print(f"failed for {key}: {exc}")


def datasets_provider(task_encoder, worker_config):
    options = {
        "batch_size": 2,
        "task_encoder": task_encoder,
        "worker_config": worker_config,
        "packing_buffer_size": 8,
        "handler": print_error_handler,
        "image_decode": "pil",
    }
    train = get_train_dataset(
        "coco", virtual_epoch_length=1000, max_samples_per_sequence=100, shuffle_buffer_size=100, **options
    )
    validation = [
        LimitDataset(
            RepeatDataset(dataset, worker_config=worker_config),
            length=5,
            worker_config=worker_config,
            reset_after_epoch=True,
        )
        for dataset, _source in get_val_datasets("coco", **options)
    ]
    return train, validation


def cyclic_iter(loader):
    while True:
        yield from loader


class EnergonDataloader:
    def __init__(self, dataloader):
        self._dataloader = dataloader
        self._iter = iter(cyclic_iter(dataloader))

    def __next__(self):
        return next(self._iter)

    def __iter__(self):
        return iter(self._iter)

    def save_state(self):
        return self._dataloader.save_state_rank()


def dataloaders_provider(saved, num_workers=2):
    worker_config = WorkerConfig(
        rank=0,
        world_size=1,
        num_workers=num_workers,
        data_parallel_group=None,
        worker_debug_path=None,
        worker_log_level=0,
    )
    train, validation = datasets_provider(TaskEncoder(), worker_config)
    loader = get_savable_loader(train, worker_config=worker_config)
    if saved.exists():
        state = torch.load(saved, map_location="cpu", weights_only=False)
        loader.restore_state_rank(state["dataloader_state_dict"])
    validation = [EnergonDataloader(get_loader(dataset, worker_config=worker_config)) for dataset in validation]
    return EnergonDataloader(loader), validation


def train(iterations, saved):
    """Train on; the keys and a sum of each step, with a validation in between."""
    seen = []
    loader, validation = dataloaders_provider(saved)
    for iteration in range(iterations):
        batch = next(loader)
        assert batch["tokens"].shape == (2, 64)
        seen.append((batch["__key__"], float(batch["images"].sum())))
        if iteration % 4 == 0:
            first, again = [[next(valid)["__key__"] for _ in range(5)] for valid in (validation[0], validation[0])]
            assert first == again, (first, again)
    torch.save({"dataloader_state_dict": loader.save_state()}, saved)
    return seen


if __name__ == "__main__":
    whole = train(ITERATIONS, Path("whole.pt"))
    saved = Path("train_dataloader_dprank000.pt")
    assert train(5, saved) + train(ITERATIONS - 5, saved) == whole
