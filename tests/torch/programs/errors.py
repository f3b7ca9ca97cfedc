"""Say what happens when a hook fails, limit how many failures in a row are tolerated, and skip on purpose."""

import logging

from _usual import take, train

import energon_grain_torch as energon

logging.disable(logging.CRITICAL)


class Unlucky(energon.DefaultTaskEncoder):
    def encode_sample(self, sample):
        number = int(sample.__key__.rpartition("_")[2])
        if number % 5 == 0:
            raise ValueError(f"{number} brings bad luck")
        return sample


def keys_with(handler, num_workers):
    config = energon.WorkerConfig(
        rank=0,
        world_size=1,
        num_workers=num_workers,
        global_error_handler=handler,
        restore_error_handler=energon.reraise_exception,
    )
    dataset = energon.get_val_dataset("coco", batch_size=None, worker_config=config, task_encoder=Unlucky())
    return [sample.__key__ for sample in energon.get_loader(dataset)]


failed = []


def remember(exception, sample, sources):
    assert isinstance(exception, Exception)
    failed.append(sample.__key__)


for num_workers in (0, 2):
    assert len(keys_with(energon.log_exception, num_workers)) == 16
    try:
        keys_with(energon.reraise_exception, num_workers)
    except Exception as error:
        assert "bad luck" in f"{error!r} {error.__cause__!r}"
    else:
        raise AssertionError("the error was swallowed")
assert len(keys_with(remember, 0)) == 16
assert len(failed) == 4


class AlwaysFails(energon.DefaultTaskEncoder):
    @energon.stateless(failure_tolerance=5)
    def encode_sample(self, sample):
        raise ValueError("corrupted")


class Skips(energon.DefaultTaskEncoder):
    def encode_sample(self, sample):
        if "red" in sample.caption:
            raise energon.SkipSample
        return sample


for batch in take(train("coco", 2, num_workers=0, task_encoder=Skips()), 20):
    assert not any("red" in caption for caption in batch.caption)
try:
    take(train("coco", 2, num_workers=0, task_encoder=AlwaysFails()), 1)
except Exception as error:
    assert type(error).__name__ == "FatalSampleError"
    assert "failed 5 times in a row" in str(error)
else:
    raise AssertionError("nothing was raised")
