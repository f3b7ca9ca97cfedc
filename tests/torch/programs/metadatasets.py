"""Split parts, subflavors, subsets and repetitions of metadatasets."""

from collections import Counter
from pathlib import Path

from _usual import keys, metadataset, take, train, validation

import energon_grain_torch as energon

path = metadataset("""
  train:
    blend:
      - {weight: 5, path: ./coco}
      - {weight: 2, path: ./coyo, split_part: train}
      - {weight: 1, path: ./coyo, split_part: val}
  test: {path: ./coyo, split_part: val}
""")
parts = [{sample.__key__ for sample in validation("coyo", split_part=part)} for part in ("train", "val")]
assert {sample.__key__ for sample in validation(path, split_part="test")} == parts[1]
found = keys(take(train(path, 8, num_workers=0), 100))
shares = [sum(key in part for key in found) / len(found) for part in parts]
assert 0.19 < shares[0] < 0.31, shares
assert 0.08 < shares[1] < 0.17, shares

path = metadataset("""
  train:
    blend:
      - {weight: 5, path: ./coco, subflavors: {augmentation_type: small_images, text_length: short}}
      - {weight: 2, path: ./coyo, subflavors: {augmentation_type: large_images, text_length: short}}
  val: {path: ./coco, subflavors: {augmentation_type: small_images, text_length: short}}
""")


class ByOrigin(energon.DefaultTaskEncoder):
    def encode_sample(self, sample):
        if sample.__subflavors__["augmentation_type"] == "small_images":
            sample.image = sample.image[:, :16, :16]
        return sample


seen = set()
for sample in take(train(path, None, task_encoder=ByOrigin()), 200):
    size = tuple(sample.image.shape[1:])
    assert sample.__subflavors__["text_length"] == "short"
    assert size == ((16, 16) if sample.__key__.startswith("coco") else (32, 48))
    seen.add(size)
assert len(seen) == 2
for batch in validation(path, 4, num_workers=2, task_encoder=ByOrigin()):
    assert batch.image.shape[2:] == (16, 16)

path = metadataset("""
  train: {path: ./coyo, subset: {range: [0%, 80%]}}
  val: {path: ./coyo, split_part: train, subset: {range: [80%, 100%]}}
  test: {path: ./coyo, split_part: train, subset: {range: [14, end]}}
""")
first, rest, last = (keys(validation(path, 4, split_part=part)) for part in ("train", "val", "test"))
everything = keys(validation("coyo", 4, split_part="train"))
assert (len(first), len(rest)) == (16, 4)
assert set(first) | set(rest) == set(everything)
assert sorted(last) == sorted(everything)[14:]
assert set(keys(take(train(path, 4), 20))) == set(first)

path = metadataset("""
  train:
    subset: {range: [0%, 50%]}
    blend:
      - {weight: 1.0, path: ./coco, subset: {range: [0, 10]}}
      - {weight: 1.0, path: ./coyo}
""")
found = set(keys(take(train(path, 4, num_workers=0), 40)))
assert Counter(key.partition("_")[0] for key in found) == {"coco": 5, "coyo": 10}

path = metadataset("""
  train:
    blend_epochized:
      - {repetitions: 5, path: ./coco}
      - {repetitions: 2, path: ./coyo}
      - {repetitions: 1, path: ./coyo, split_part: val}
""")
loader = train(path, 2, repeat=False)
epochs = [Counter(keys(loader)) for _ in range(2)]
assert sum(epochs[0].values()) == 5 * 40 + 2 * 20 + 10
assert {(key.partition("_")[0], times) for key, times in epochs[0].items()} == {("coco", 5), ("coyo", 2), ("coyo", 1)}
assert epochs[0] == epochs[1]

path = metadataset("""
  train:
    join: [{path: ds1}, {path: ds2}]
    joiner: {__module__: megatron.energon, __class__: CaptioningSample}
""")
energon.prepare_metadataset(Path(path))
for batch in take(train(path, 2), 4):
    for image, caption in zip(batch.image, batch.caption):
        assert caption == f"about {round(image.mean().item() * 255)}"
