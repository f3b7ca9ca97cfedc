"""A task encoder in the manner of Megatron-LM's `examples/mimo/data`: samples and batches are dictionaries.

The data are prepared by the program, as Megatron-Bridge's `data/energon/prepare.py` does.
"""

import json
from collections import UserDict
from pathlib import Path

import torch
from megatron.energon import DefaultTaskEncoder, VQASample, WorkerConfig, get_loader, get_train_dataset
from megatron.energon.epathlib.epath import EPath
from megatron.energon.flavors.webdataset import BaseWebdatasetFactory
from megatron.energon.flavors.webdataset.config import MAIN_FOLDER_NAME
from megatron.energon.task_encoder.base import stateless

DATASET_YAML = """
sample_type: {__module__: megatron.energon, __class__: VQASample}
field_map: {image: jpg, context: "json[question]", answers: "json[answers]"}
__module__: megatron.energon
__class__: StandardWebdatasetFactory
"""


class Features(UserDict):
    """What processors return: a mapping that is no dict."""


class VLMTaskEncoder(DefaultTaskEncoder[VQASample, dict, dict, dict]):
    def __init__(self, name):  # without super().__init__()
        self.name = name

    @stateless
    def encode_sample(self, sample):
        tokens = torch.tensor(list(f"{sample.context} {sample.answers[0]}".encode()))
        labels = torch.full_like(tokens, -100)
        labels[-len(sample.answers[0]) :] = tokens[-len(sample.answers[0]) :]
        inputs = Features(input_ids=tokens[:-1], labels=labels[1:], pixel_values=sample.image.unsqueeze(0))
        for key, value in inputs.items():
            inputs[key] = value.squeeze(0) if key == "pixel_values" else value
        inputs["loss_mask"] = (inputs["labels"] != -100).long()
        return inputs

    def batch(self, samples):
        pad = {"input_ids": 0, "labels": -100, "loss_mask": 0}
        return {
            key: torch.nn.utils.rnn.pad_sequence([each[key] for each in samples], True, pad[key])
            if key in pad
            else torch.stack([each[key] for each in samples])
            for key in samples[0].keys()
        }

    def encode_batch(self, batch_data):
        length = batch_data["input_ids"].size(1)
        return {
            **{key: batch_data[key] for key in ("input_ids", "labels", "loss_mask")},
            "position_ids": torch.arange(length).unsqueeze(0).repeat(len(batch_data["input_ids"]), 1),
            "modality_inputs": {"images": {self.name: {"pixel_values": batch_data["pixel_values"]}}},
        }


def prepare(path):
    parts = BaseWebdatasetFactory.prepare_dataset(
        path,
        [path_.name for path_ in sorted(Path(str(path)).glob("*.tar"))],
        split_parts_ratio=[("train", 1.0), ("val", 0.0)],
        shuffle_seed=42,
        workers=1,
    )
    assert parts == {"jpg", "json"}
    (path / MAIN_FOLDER_NAME / "dataset.yaml").write_text(DATASET_YAML)


if __name__ == "__main__":
    import tarfile
    from io import BytesIO

    from PIL import Image

    Path("vqa").mkdir()
    with tarfile.open("vqa/shard_0.tar", "w") as tar:
        for i in range(24):
            picture = BytesIO()
            Image.new("RGB", (8, 8), (i, i, i)).save(picture, "JPEG")
            texts = json.dumps({"question": f"Which number is {'so ' * (i % 3)}dark?", "answers": [str(i)]}).encode()
            for part, data in (("jpg", picture.getvalue()), ("json", texts)):
                member = tarfile.TarInfo(f"{i:03d}.{part}")
                member.size = len(data)
                tar.addfile(member, BytesIO(data))
    prepare(EPath("vqa"))

    worker_config = WorkerConfig.default_worker_config(0)
    loader = get_loader(
        get_train_dataset(
            "vqa",
            batch_size=8,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            task_encoder=VLMTaskEncoder("clip_encoder"),
            worker_config=worker_config,
            repeat=False,
        ),
        worker_config=worker_config,
    )
    assert len(loader) == 3
    answers = set()
    for batch in loader:
        assert batch["modality_inputs"]["images"]["clip_encoder"]["pixel_values"].shape == (8, 3, 8, 8)
        assert batch["position_ids"].shape == batch["input_ids"].shape == batch["labels"].shape
        answers |= {bytes(row[mask > 0].tolist()) for row, mask in zip(batch["labels"], batch["loss_mask"])}
    assert answers == {str(i).encode() for i in range(24)}
