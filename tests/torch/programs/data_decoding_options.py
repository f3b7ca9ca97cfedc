"""Say how parts are decoded: the `decoder` of a task encoder."""

import torch
from PIL import Image

import energon_grain_torch as energon


class AsPillow(energon.DefaultTaskEncoder):
    decoder = energon.SampleDecoder(image_decode="pilrgb")


class AsTensors(energon.DefaultTaskEncoder):
    decoder = energon.SampleDecoder(image_decode="torchrgb8")


class AsBytes(energon.DefaultTaskEncoder):
    decoder = None


def first(encoder):
    dataset = energon.get_val_dataset(
        "coco",
        batch_size=None,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=0),
        task_encoder=encoder,
    )
    return next(iter(energon.get_loader(dataset)))


image = first(AsPillow()).image
assert isinstance(image, Image.Image)
assert image.mode == "RGB"

tensor = first(AsTensors()).image
assert isinstance(tensor, torch.Tensor)
assert tensor.shape == (3, image.height, image.width)

sample = first(AsBytes())
assert bytes(sample.image).startswith(b"\xff\xd8")
assert bytes(sample.caption).startswith(b"Something ")
