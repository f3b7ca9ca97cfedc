"""Limit how many failures in a row are tolerated, and skip on purpose."""

import logging

import energon_grain_torch as energon

logging.disable(logging.CRITICAL)


class AlwaysFails(energon.DefaultTaskEncoder):
    @energon.stateless(failure_tolerance=5)
    def encode_sample(self, sample):
        raise ValueError("corrupted")


class Skips(energon.DefaultTaskEncoder):
    def encode_sample(self, sample):
        if "red" in sample.caption:
            raise energon.SkipSample
        return sample


def loader_of(encoder):
    return energon.get_loader(
        energon.get_train_dataset(
            "coco",
            batch_size=2,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=energon.WorkerConfig.default_worker_config(num_workers=0),
            task_encoder=encoder,
        )
    )


for _, batch in zip(range(20), loader_of(Skips())):
    assert not any("red" in caption for caption in batch.caption)

try:
    next(iter(loader_of(AlwaysFails())))
except Exception as error:
    assert type(error).__name__ == "FatalSampleError"
    assert "failed 5 times in a row" in str(error)
else:
    raise AssertionError("nothing was raised")
