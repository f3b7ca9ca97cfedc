"""Say what happens when a hook fails: log and go on, raise, or ask a function of one's own."""

import energon_grain_torch as energon


class Unlucky(energon.DefaultTaskEncoder):
    def encode_sample(self, sample):
        if sample.caption.endswith("."):
            number = int(sample.__key__.rpartition("_")[2])
            if number % 5 == 0:
                raise ValueError(f"{number} brings bad luck")
        return sample


def keys_with(handler, num_workers):
    dataset = energon.get_val_dataset(
        "coco",
        batch_size=None,
        worker_config=energon.WorkerConfig(
            rank=0,
            world_size=1,
            num_workers=num_workers,
            global_error_handler=handler,
            restore_error_handler=energon.reraise_exception,
        ),
        task_encoder=Unlucky(),
    )
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
