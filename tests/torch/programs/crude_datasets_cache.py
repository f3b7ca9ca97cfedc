"""Pack by what is cheap and read images afterwards: lazy values of a cache pool, and values moved into it."""

from dataclasses import dataclass
from pathlib import Path

import torch

import energon_grain_torch as energon

Path("metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    path: ./stories
    aux:
      photos: ./photos
      authors: filesystem://./authors
""")
Path("cache").mkdir()


@dataclass
class LazyStory(energon.Sample):
    text: str
    facts: energon.Lazy
    photo: energon.Lazy


@dataclass
class Packed(energon.Sample):
    text: str
    photo: torch.Tensor
    facts: list


@energon.stateless
@energon.cooker(need_cache=True)
def cook_lazily(sample: dict, photos: energon.FileStore, authors: energon.FileStore, cache: energon.CachePool):
    return LazyStory(
        **energon.basic_sample_keys(sample),
        text=sample["txt"],
        facts=cache.to_cache(sample["json"], sample["__key__"] + ".json"),
        photo=cache.get_lazy(photos, sample["json"]["photo"]),
    )


class Packing(energon.DefaultTaskEncoder):
    cookers = [energon.Cooker(cook_lazily)]

    def select_samples_to_pack(self, samples):
        samples.sort(key=lambda sample: len(sample.text))
        return [samples[at : at + 4] for at in range(0, len(samples), 4)]

    @energon.stateless
    def pack_selected_samples(self, samples):
        return Packed.derive_from(
            samples[0],
            text=" ".join(sample.text for sample in samples),
            photo=torch.stack([sample.photo.get(sample) for sample in samples]),
            facts=[sample.facts.get(sample)["photo"] for sample in samples],
        )


loader = energon.get_savable_loader(
    energon.get_train_dataset(
        "metadataset.yaml",
        batch_size=2,
        packing_buffer_size=12,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=1),
        task_encoder=Packing(),
    ),
    cache_pool=energon.FileStoreCachePool(parent_cache_dir=Path("cache").absolute(), num_workers=1),
)
for _, batch in zip(range(3), loader):
    assert batch.photo.shape[:3] == (2, 4, 3)
    assert all(len(facts) == 4 for facts in batch.facts)
