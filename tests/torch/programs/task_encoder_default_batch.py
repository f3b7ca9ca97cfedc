"""Leave batching to the default, which pads and stacks tensors; leave samples out."""

from dataclasses import dataclass

import torch

import energon_grain_torch as energon


@dataclass
class Tokens(energon.Sample):
    tokens: torch.Tensor
    caption: str


class Encoder(energon.DefaultTaskEncoder[energon.CaptioningSample, Tokens, Tokens, Tokens]):
    def encode_sample(self, sample):
        if "red" in sample.caption:
            raise energon.SkipSample
        return Tokens.derive_from(sample, tokens=torch.tensor(list(sample.caption.encode())), caption=sample.caption)


loader = energon.get_loader(
    energon.get_train_dataset(
        "coco",
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=0),
        task_encoder=Encoder(),
    )
)
for _, batch in zip(range(10), loader):
    assert isinstance(batch, Tokens)
    longest = max(len(caption.encode()) for caption in batch.caption)
    assert batch.tokens.shape == (4, longest)
    assert not any("red" in caption for caption in batch.caption)
    assert [len(caption) for caption in batch.caption] == (batch.tokens != 0).sum(dim=1).tolist()
