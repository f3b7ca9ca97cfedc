"""What the programs beside this file have in common."""

from pathlib import Path

import energon_grain_torch as energon


def metadataset(splits, name="metadataset.yaml"):
    """Write a metadataset of version 2; `splits` is YAML."""
    Path(name).write_text(f"__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n{splits}")
    return name


def workers(number):
    return energon.WorkerConfig.default_worker_config(num_workers=number)


def train_dataset(path, batch_size, num_workers=2, **options):
    given = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 100, "worker_config": workers(num_workers)}
    return energon.get_train_dataset(path, batch_size=batch_size, **{**given, **options})


def train(path, batch_size, num_workers=2, **options):
    """A loader that can be saved."""
    return energon.get_savable_loader(train_dataset(path, batch_size, num_workers, **options))


def validation(path, batch_size=None, num_workers=0, **options):
    return energon.get_loader(
        energon.get_val_dataset(path, **{"batch_size": batch_size, "worker_config": workers(num_workers), **options})
    )


def take(loader, count):
    return [batch for _, batch in zip(range(count), loader)]


def keys(batches):
    """Those of all samples."""
    return [key for batch in batches for key in batch.__key__]
