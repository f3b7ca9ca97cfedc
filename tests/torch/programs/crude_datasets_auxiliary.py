"""Cook with files from elsewhere: of a second dataset, of a folder, and of the dataset itself."""

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
    subflavors:
      crude_type: with_photos
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


loader = energon.get_loader(
    energon.get_train_dataset(
        "metadataset.yaml",
        batch_size=4,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
        task_encoder=Stories(),
    )
)
for _, batch in zip(range(5), loader):
    assert batch.photo.shape[:2] == (4, 3)
    assert set(batch.author) <= {"Ada", "Grace"}
    assert len(batch.__sources__) >= 3
