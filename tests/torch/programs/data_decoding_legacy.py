"""Decode as programs before Energon 7 said it: by arguments of `get_val_dataset`."""

import warnings

from PIL import Image

import energon_grain_torch as energon

worker_config = energon.WorkerConfig.default_worker_config(num_workers=0)
for options in ({"image_decode": "pilrgb"}, {"auto_decode": False}):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated
        dataset = energon.get_val_dataset(
            "coco",
            batch_size=None,
            worker_config=worker_config,
            task_encoder=energon.DefaultTaskEncoder(),
            **options,
        )
        sample = next(iter(energon.get_loader(dataset)))
    assert isinstance(sample.image, Image.Image if "image_decode" in options else (bytes, memoryview))
