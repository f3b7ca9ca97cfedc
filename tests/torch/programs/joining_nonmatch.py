"""Join three datasets where keys are missing: rows are left out, or a column is None."""

from dataclasses import dataclass
from pathlib import Path

import energon_grain_torch as energon


@dataclass
class Row(energon.Sample):
    texts: list

    @staticmethod
    def from_joined(one, two, three):
        return Row.derive_from(one, texts=[one.text, two.text, None if three is None else three.text])


Path("metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    join:
      - path: few1
      - path: few2
        nonmatch: skip
      - path: few3
        nonmatch: none
    joiner:
      __module__: __main__
      __class__: Row
""")
energon.prepare_metadataset(Path("metadataset.yaml"))

dataset = energon.get_val_dataset(
    "metadataset.yaml",
    split_part="train",
    batch_size=None,
    worker_config=energon.WorkerConfig.default_worker_config(num_workers=0),
)
rows = {sample.__key__: sample.texts for sample in energon.get_loader(dataset)}
assert rows == {
    "s1": ["s1 of few1", "s1 of few2", "s1 of few3"],
    "s3": ["s3 of few1", "s3 of few2", "s3 of few3"],
    "s6": ["s6 of few1", "s6 of few2", None],
}
