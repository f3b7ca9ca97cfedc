"""End the iteration from a hook, whatever the error handler says."""

import energon_grain_torch as energon


class Fatal(energon.DefaultTaskEncoder):
    def encode_sample(self, sample):
        try:
            raise OSError("no space left")
        except OSError as error:
            raise energon.FatalSampleError.from_sample(sample, "the scratch disk is full") from error


for num_workers in (0, 2):
    loader = energon.get_loader(
        energon.get_val_dataset(
            "coco",
            batch_size=2,
            worker_config=energon.WorkerConfig.default_worker_config(num_workers=num_workers),
            task_encoder=Fatal(),
        )
    )
    try:
        next(iter(loader))
    except energon.FatalSampleError as error:
        text = f"{error} {error.__cause__}"
        assert "the scratch disk is full" in text
        assert "coco_040" in text
    else:
        raise AssertionError("nothing was raised")
