"""Task encoders: decoders, batches by own hooks and by default, groups, packs, and datasets put together by hand."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from _usual import keys, metadataset, take, train, validation
from PIL import Image

import energon_grain_torch as energon


class AsPillow(energon.DefaultTaskEncoder):
    decoder = energon.SampleDecoder(image_decode="pilrgb")


class AsTensors(energon.DefaultTaskEncoder):
    decoder = energon.SampleDecoder(image_decode="torchrgb8")


class AsBytes(energon.DefaultTaskEncoder):
    decoder = None


image, tensor, raw = (next(iter(validation("coco", task_encoder=each()))) for each in (AsPillow, AsTensors, AsBytes))
assert isinstance(image.image, Image.Image)
assert image.image.mode == "RGB"
assert isinstance(tensor.image, torch.Tensor)
assert tensor.image.shape == (3, image.image.height, image.image.width)
assert bytes(raw.image).startswith(b"\xff\xd8")
assert bytes(raw.caption).startswith(b"Something ")
for options, kind in (({"image_decode": "pilrgb"}, Image.Image), ({"auto_decode": False}, (bytes, memoryview))):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as programs before Energon 7 said it
        sample = next(iter(validation("coco", task_encoder=energon.DefaultTaskEncoder(), **options)))
    assert isinstance(sample.image, kind)


@dataclass
class CaptioningRawBatch(energon.Batch):
    image: torch.Tensor  # (n, c, h, w)
    caption: list[str]


@dataclass
class CaptioningBatch(energon.Batch):
    images: torch.Tensor  # (n, c, h, w)
    text_tokens: torch.Tensor  # (n, t)
    text_attn_mask: torch.Tensor  # (n, t)


class BytesTokenizer:
    """One token a byte; stands for a tokenizer of a model."""

    def __call__(self, texts: list[str]) -> dict[str, torch.Tensor]:
        tokens = [torch.tensor(list(text.encode())) for text in texts]
        padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
        return {"input_ids": padded, "attention_mask": padded != 0}


def random_crop(image: torch.Tensor) -> torch.Tensor:
    """16 × 16 pixels of the image, mirrored half the time."""
    top, left = (int(torch.randint(size - 15, ())) for size in image.shape[1:])
    crop = image[:, top : top + 16, left : left + 16]
    return crop.flip(2) if torch.rand(()) < 0.5 else crop


class CaptioningTaskEncoder(
    energon.DefaultTaskEncoder[energon.CaptioningSample, energon.CaptioningSample, CaptioningRawBatch, CaptioningBatch]
):
    decoder = energon.SampleDecoder(image_decode="torchrgb")

    def __init__(self, tokenizer: BytesTokenizer, image_transform: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__(batch_type=CaptioningRawBatch)
        self.tokenizer = tokenizer
        self.image_transform = image_transform

    @energon.stateless(restore_seeds=True)
    def encode_sample(self, sample: energon.CaptioningSample) -> energon.CaptioningSample:
        sample.image = self.image_transform(sample.image)
        return sample

    def batch(self, samples: list[energon.CaptioningSample]) -> CaptioningRawBatch:
        return CaptioningRawBatch.from_samples(
            samples,
            image=energon.batch_stack([sample.image for sample in samples]),
            caption=energon.batch_list([sample.caption for sample in samples]),
        )

    def encode_batch(self, batch: CaptioningRawBatch) -> CaptioningBatch:
        tokenized = self.tokenizer(batch.caption)
        return CaptioningBatch.derive_from(
            batch,
            images=batch.image,
            text_tokens=tokenized["input_ids"],
            text_attn_mask=tokenized["attention_mask"],
        )


encoder = CaptioningTaskEncoder(tokenizer=BytesTokenizer(), image_transform=random_crop)
for data in take(train("coco", 8, task_encoder=encoder), 3):
    assert type(data) is CaptioningBatch
    assert data.images.shape == (8, 3, 16, 16)
    assert data.text_tokens.shape == data.text_attn_mask.shape
    assert data.text_tokens.dtype == torch.int64
    text = bytes(data.text_tokens[0][data.text_attn_mask[0]].tolist()).decode()
    assert text.startswith("Something ")


@dataclass
class Tokens(energon.Sample):
    tokens: torch.Tensor
    caption: str


class Encoder(energon.DefaultTaskEncoder[energon.CaptioningSample, Tokens, Tokens, Tokens]):
    """Leaves batching to the default, which pads and stacks."""

    def encode_sample(self, sample):
        return Tokens.derive_from(sample, tokens=torch.tensor(list(sample.caption.encode())), caption=sample.caption)


for batch in take(train("coco", 4, num_workers=0, task_encoder=Encoder()), 10):
    assert isinstance(batch, Tokens)
    assert batch.tokens.shape == (4, max(len(caption.encode()) for caption in batch.caption))
    assert [len(caption) for caption in batch.caption] == (batch.tokens != 0).sum(dim=1).tolist()


class TwoSteps(energon.DefaultTaskEncoder):
    """A cheap part before packing, the rest after it."""

    @energon.stateless
    def preencode_sample(self, sample):
        sample.caption = sample.caption.split()
        return sample

    @energon.stateless
    def postencode_sample(self, sample):
        sample.image = sample.image.mean(dim=(1, 2))
        return sample


class TwoStepsPacked(TwoSteps):
    def select_samples_to_pack(self, samples):
        samples.sort(key=lambda sample: len(sample.caption))
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    @energon.stateless
    def pack_selected_samples(self, samples):
        assert all(sample.image.shape == (3,) for sample in samples)
        return energon.CaptioningSample.derive_from(
            samples[0],
            image=torch.stack([sample.image for sample in samples]).mean(dim=0),
            caption=[word for sample in samples for word in sample.caption],
        )


for encoder, packing in ((TwoSteps(), {}), (TwoStepsPacked(), {"packing_buffer_size": 10})):
    for batch in take(train("coco", 3, task_encoder=encoder, **packing), 3):
        assert batch.image.shape == (3, 3)
        assert [words.count("Something") for words in batch.caption] == [2 if packing else 1] * 3


class ByAspect(energon.DefaultTaskEncoder):
    def batch_group_criterion(self, sample):
        ratio = sample.image.shape[2] / sample.image.shape[1]
        if ratio < 0.8:
            return "portrait", 6
        return ("square", 6) if ratio < 1.2 else ("landscape", 6)


class BySize(energon.DefaultTaskEncoder):
    def batch_group_criterion(self, sample):
        return sample.image.shape, 4 if sample.image.shape[1] < 40 else 2


class ByAspectInBatchSize(ByAspect):
    def batch_group_criterion(self, sample):
        return super().batch_group_criterion(sample)[0], None


def shapes(encoder, batch_size):
    return [tuple(batch.image.shape) for batch in take(train("shapes", batch_size, 0, task_encoder=encoder), 40)]


assert {shape[0] for shape in shapes(ByAspect(), None)} == {6}
assert set(shapes(BySize(), None)) == {(4, 3, 32, 48), (2, 3, 48, 32), (2, 3, 40, 40)}
assert {shape[0] for shape in shapes(ByAspectInBatchSize(), 3)} == {3}

MAX_LENGTH = 200


class Packing(energon.DefaultTaskEncoder):
    """Captions in sequences of bounded length, with augmentation."""

    decoder = energon.SampleDecoder(image_decode="torchrgb")

    @energon.stateless(restore_seeds=True)
    def encode_sample(self, sample):
        sample.image = sample.image + 0.1 * torch.rand(sample.image.shape)
        return sample

    def select_samples_to_pack(self, samples):
        groups, length = [], MAX_LENGTH
        for sample in sorted(samples, key=lambda sample: len(sample.caption)):
            if length + len(sample.caption) >= MAX_LENGTH:
                groups.append([])
                length = 0
            groups[-1].append(sample)
            length += len(sample.caption)
        return groups

    @energon.stateless
    def pack_selected_samples(self, samples):
        return energon.CaptioningSample(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),
            __subflavors__=samples[0].__subflavors__,
            image=torch.stack([sample.image for sample in samples]),
            caption="".join(sample.caption for sample in samples),
        )


def steps(loader, n):
    return [(sample.__key__, sample.image.sum().item()) for sample in take(loader, n)]


loader = train("coco", None, packing_buffer_size=15, task_encoder=Packing())
for sample in take(loader, 7):
    assert len(sample.caption) < MAX_LENGTH
    assert len(sample.image) == sample.__key__.count(",") + 1
state = loader.save_state_rank()
expected = steps(loader, 5)
loader = train("coco", None, packing_buffer_size=15, task_encoder=Packing())
loader.restore_state_rank(state)
assert steps(loader, 5) == expected

path = metadataset("""
  train:
    blend:
      - {weight: 2, path: ./coco}
      - {weight: 1, path: ./coyo}
""")


class BlendThenBatch(energon.DefaultTaskEncoder):
    """Virtual epochs of what is put together here."""

    def build_train_datasets(self, *, datasets, worker_config, batch_size, virtual_epoch_length=0, **others):
        dataset = energon.BlendDataset(*self.inputs(datasets, worker_config, batch_size), worker_config=worker_config)
        dataset = self.over_the_blend(dataset, worker_config, batch_size)
        return energon.EpochizeDataset(dataset, length=virtual_epoch_length, worker_config=worker_config)

    def inputs(self, datasets, worker_config, batch_size):
        return [
            (energon.RepeatDataset(loaded.dataset.build(), worker_config=worker_config), loaded.weight)
            for loaded in datasets
        ]

    def over_the_blend(self, dataset, worker_config, batch_size):
        return self.build_batch(dataset, batch_size=batch_size, worker_config=worker_config)


class BatchThenBlend(BlendThenBatch):
    def inputs(self, datasets, worker_config, batch_size):
        return [
            (self.build_batch(dataset, batch_size=batch_size, worker_config=worker_config), weight)
            for dataset, weight in super().inputs(datasets, worker_config, batch_size)
        ]

    def over_the_blend(self, dataset, worker_config, batch_size):
        return dataset


for encoder in (BlendThenBatch(), BatchThenBlend()):
    batches = [keys([batch]) for batch in train(path, 5, virtual_epoch_length=30, task_encoder=encoder)]
    assert len(batches) == 30
    mixed = sum(len({key.partition("_")[0] for key in each}) > 1 for each in batches)
    assert (mixed == 0) == isinstance(encoder, BatchThenBlend)
