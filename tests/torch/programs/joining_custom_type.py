"""Join inside a blend, with configurations, subflavors and a sample type of the program."""

import sys
from pathlib import Path

import energon_grain_torch as energon

Path("my_module.py").write_text("""
from dataclasses import dataclass

from energon_grain_torch import Sample, TextSample


@dataclass
class JoinedSample(Sample):
    text1: str
    text2: str

    @staticmethod
    def from_joined(ds1: TextSample, ds2: TextSample) -> "JoinedSample":
        return JoinedSample.derive_from(ds1, text1=ds1.text, text2=ds2.text)
""")
Path("metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - weight: 1
        join:
          - path: few1
            dataset_config: dataset.yaml
          - path: few2
            dataset_config: dataset.yaml
            subflavors:
              ds2_extra: 2
            split_config: split.yaml
            nonmatch: skip
        joiner:
          __module__: my_module
          __class__: JoinedSample
        split_config: split.yaml
        split_part: train
        subflavors:
          source: metadataset.yaml
          src: ds1
""")
sys.path.insert(0, ".")
from my_module import JoinedSample  # noqa: E402

energon.prepare_metadataset(Path("metadataset.yaml"))


class Encoder(energon.DefaultTaskEncoder):
    def encode_sample(self, sample: JoinedSample):
        assert isinstance(sample, JoinedSample)
        sample.text1 = sample.text1.upper()
        return sample


loader = energon.get_loader(
    energon.get_train_dataset(
        "metadataset.yaml",
        batch_size=3,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
        task_encoder=Encoder(),
    )
)
for _, batch in zip(range(5), loader):
    for one, two, flavors in zip(batch.text1, batch.text2, batch.__subflavors__):
        assert one.split()[0].lower() == two.split()[0]
        assert (flavors["source"], flavors["src"]) == ("metadataset.yaml", "ds1")
