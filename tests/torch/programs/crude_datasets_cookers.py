"""Cook crude samples: one cooker for each kind, chosen by subflavors."""

from dataclasses import dataclass
from pathlib import Path

import energon_grain_torch as energon

Path("metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - weight: 1
        path: ./crude
        subflavors: {kind: brackets}
      - weight: 1
        path: ./crude
        split_part: val
        subflavors: {kind: numbers}
""")


@energon.stateless
def cook_brackets(sample: dict) -> energon.TextSample:
    return energon.TextSample(**energon.basic_sample_keys(sample), text=f">{sample['txt'].decode()}<")


@energon.stateless
def cook_number(sample: dict) -> energon.TextSample:
    return energon.TextSample(**energon.basic_sample_keys(sample), text=f"words in {sample['__key__']}")


@dataclass
class TextBatch(energon.Batch):
    text: list[str]


class Encoder(energon.DefaultTaskEncoder[energon.TextSample, energon.TextSample, TextBatch, TextBatch]):
    decoder = None  # parts stay bytes
    cookers = [
        energon.Cooker(cook_brackets, has_subflavors={"kind": "brackets"}),
        energon.Cooker(cook_number),
    ]

    def __init__(self):
        super().__init__(raw_batch_type=TextBatch, batch_type=TextBatch)


loader = energon.get_loader(
    energon.get_train_dataset(
        "metadataset.yaml",
        batch_size=10,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
        task_encoder=Encoder(),
    )
)
batch = next(iter(loader))
assert isinstance(batch, TextBatch)
for text, flavors in zip(batch.text, batch.__subflavors__):
    start = ">" if flavors["kind"] == "brackets" else "words in crude_"
    assert text.startswith(start), text
