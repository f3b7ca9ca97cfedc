"""What stands on Energon's pages and does not run there, each for its reason."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from _usual import keys, metadataset, take, train, validation

import energon_grain_torch as energon

# A name that is not there: end the iteration from a hook, whatever the error handler says.


class Fatal(energon.DefaultTaskEncoder):
    def encode_sample(self, sample):
        raise energon.FatalSampleError.from_sample(sample, "the scratch disk is full") from OSError("no space left")


for num_workers in (0, 2):
    try:
        next(iter(validation("coco", 2, num_workers, task_encoder=Fatal())))
    except energon.FatalSampleError as error:
        text = f"{error} {error.__cause__}"
        assert "the scratch disk is full" in text
        assert "coco_040" in text
    else:
        raise AssertionError("nothing was raised")

# A `split_config` that its page gives a join: joined inside a blend, with a sample type of the program.

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
path = metadataset("""
  train:
    blend:
      - weight: 1
        join:
          - {path: few1, dataset_config: dataset.yaml}
          - path: few2
            dataset_config: dataset.yaml
            subflavors: {ds2_extra: 2}
            split_config: split.yaml
            nonmatch: skip
        joiner: {__module__: my_module, __class__: JoinedSample}
        split_config: split.yaml
        split_part: train
        subflavors: {source: metadataset.yaml, src: ds1}
""")
sys.path.insert(0, ".")
from my_module import JoinedSample  # noqa: E402

energon.prepare_metadataset(Path(path))


class Upper(energon.DefaultTaskEncoder):
    def encode_sample(self, sample: JoinedSample):
        assert isinstance(sample, JoinedSample)
        sample.text1 = sample.text1.upper()
        return sample


for batch in take(train(path, 3, task_encoder=Upper()), 5):
    for one, two, flavors in zip(batch.text1, batch.text2, batch.__subflavors__):
        assert one.split()[0].lower() == two.split()[0]
        assert (flavors["source"], flavors["src"]) == ("metadataset.yaml", "ds1")

# `nonmatch: none`, which cannot be read there: rows are left out, or a column is None.


@dataclass
class Row(energon.Sample):
    texts: list

    @staticmethod
    def from_joined(one, two, three):
        return Row.derive_from(one, texts=[one.text, two.text, None if three is None else three.text])


path = metadataset("""
  train:
    join: [{path: few1}, {path: few2, nonmatch: skip}, {path: few3, nonmatch: none}]
    joiner: {__module__: __main__, __class__: Row}
""")
energon.prepare_metadataset(Path(path))
assert {sample.__key__: sample.texts for sample in validation(path, split_part="train")} == {
    "s1": ["s1 of few1", "s1 of few2", "s1 of few3"],
    "s3": ["s3 of few1", "s3 of few2", "s3 of few3"],
    "s6": ["s6 of few1", "s6 of few2", None],
}

# A batch without a loader and without a worker configuration, which is demanded there.

dataset = energon.get_train_dataset("coco", batch_size=4, shuffle_buffer_size=100, max_samples_per_sequence=100)
assert next(iter(dataset)).image.shape == (4, 3, 32, 48)

# The keyword that its pages use, `dst_rank`, which has another name there; without a process group.

loader = train("coco", 4)
take(loader, 10)
state = json.loads(json.dumps(loader.save_state_global(dst_rank=0)))
expected = keys(take(loader, 1))
loader = train("coco", 4)
loader.restore_state_global(state, src_rank=None)
assert keys(take(loader, 1)) == expected
