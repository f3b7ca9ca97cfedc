"""A task encoder for captioning: random crops of images, and a tokenizer over a batch of captions."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

import energon_grain_torch as energon


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

    def __init__(
        self,
        tokenizer: BytesTokenizer,
        image_transform: Callable[[torch.Tensor], torch.Tensor],
        max_length: int = 128,
    ):
        super().__init__(batch_type=CaptioningRawBatch)
        self.tokenizer = tokenizer
        self.image_transform = image_transform
        self.max_length = max_length

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


loader = energon.get_loader(
    energon.get_train_dataset(
        "coco",
        batch_size=8,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
        task_encoder=CaptioningTaskEncoder(tokenizer=BytesTokenizer(), image_transform=random_crop),
    )
)
for _, data in zip(range(3), loader):
    assert type(data) is CaptioningBatch
    assert data.images.shape == (8, 3, 16, 16)
    assert data.text_tokens.shape == data.text_attn_mask.shape
    assert data.text_tokens.dtype == torch.int64
    text = bytes(data.text_tokens[0][data.text_attn_mask[0]].tolist()).decode()
    assert text.startswith("Something ")
