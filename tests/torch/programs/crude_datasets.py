"""Cook crude samples: by subflavors, with files from elsewhere, with lazy values of a cache pool."""

from dataclasses import dataclass
from pathlib import Path

import torch
from _usual import metadataset, take, train, train_dataset, validation

import energon_grain_torch as energon

path = metadataset("""
  train:
    blend:
      - {weight: 1, path: ./crude, subflavors: {kind: brackets}}
      - {weight: 1, path: ./crude, split_part: val, subflavors: {kind: numbers}}
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
    cookers = [energon.Cooker(cook_brackets, has_subflavors={"kind": "brackets"}), energon.Cooker(cook_number)]

    def __init__(self):
        super().__init__(raw_batch_type=TextBatch, batch_type=TextBatch)


(batch,) = take(train(path, 10, task_encoder=Encoder()), 1)
assert isinstance(batch, TextBatch)
for text, flavors in zip(batch.text, batch.__subflavors__):
    assert text.startswith(">" if flavors["kind"] == "brackets" else "words in crude_"), text

path = metadataset("""
  train:
    path: ./stories
    aux: {photos: ./photos, authors: 'filesystem://./authors'}
    subflavors: {crude_type: with_photos}
""")


@dataclass
class Story(energon.Sample):
    text: str
    author: str
    photo: torch.Tensor


@energon.stateless
@energon.cooker(need_primary=True)
def cook_story(sample: dict, primary: energon.FileStore, photos: energon.FileStore, authors: energon.FileStore):
    facts = primary.get(".json", sample)
    return Story(
        **energon.basic_sample_keys(sample),
        text=sample["txt"],
        author=authors.get(facts["author"], sample),
        photo=photos.get(facts["photo"], sample),
    )


class Stories(energon.DefaultTaskEncoder):
    cookers = [energon.Cooker(cook_story, has_subflavors={"crude_type": "with_photos"})]


for batch in take(train(path, 4, task_encoder=Stories()), 5):
    assert batch.photo.shape[:2] == (4, 3)
    assert set(batch.author) <= {"Ada", "Grace"}
    assert len(batch.__sources__) >= 3


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
    """Packs by what is cheap, and reads images afterwards."""

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


Path("cache").mkdir()
loader = energon.get_savable_loader(
    train_dataset(path, 2, 1, packing_buffer_size=12, task_encoder=Packing()),
    cache_pool=energon.FileStoreCachePool(parent_cache_dir=Path("cache").absolute(), num_workers=1),
)
for batch in take(loader, 3):
    assert batch.photo.shape[:3] == (2, 4, 3)
    assert all(len(facts) == 4 for facts in batch.facts)

# What Energon's older sample loaders did: boxes of a page, and texts interleaved with pictures.


@energon.stateless
def cook_page(sample: dict) -> energon.OCRSample:
    lines = sample["bbox.json"]
    return energon.OCRSample(
        **energon.basic_sample_keys(sample),
        image=sample["jpg"],
        text=sample["gt.txt"],
        lines_boxes=torch.tensor([line["bbox"] for line in lines], dtype=torch.int64),
        lines_text=[line["text"] for line in lines],
    )


@energon.stateless
def cook_interleaved(sample: dict) -> energon.InterleavedSample:
    images, texts = sample["json"]["images"], sample["json"]["texts"]
    sequence = [sample[image] if text is None else text for image, text in zip(images, texts)]
    return energon.InterleavedSample(**energon.basic_sample_keys(sample), sequence=sequence)


class Pages(energon.DefaultTaskEncoder):
    cookers = [energon.Cooker(cook_page)]


class Interleaved(energon.DefaultTaskEncoder):
    cookers = [energon.Cooker(cook_interleaved)]


read = {"split_part": "train", "num_workers": 2, "part_filter": lambda part: part != "notes.txt"}
pages = list(validation("pages", task_encoder=Pages(), **read))
assert len(pages) == 6
for page in pages:
    assert page.image.shape == (3, 8, 8)
    assert page.lines_boxes.shape == (2, 4)
    assert page.text == "\n".join(page.lines_text)
stories = validation("interleaved", task_encoder=Interleaved(), split_part="train", num_workers=2)
assert {type(item) for story in stories for item in story.sequence} == {str, torch.Tensor}
