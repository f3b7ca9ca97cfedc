"""Batch what belongs together: by aspect ratio, by exact size, and with one batch size for all groups."""

import energon_grain_torch as energon


class ByAspect(energon.DefaultTaskEncoder):
    def batch_group_criterion(self, sample):
        ratio = sample.image.shape[2] / sample.image.shape[1]
        if ratio < 0.8:
            return "portrait", 6
        return ("square", 6) if ratio < 1.2 else ("landscape", 6)


class BySize(energon.DefaultTaskEncoder):
    def batch_group_criterion(self, sample):
        return sample.image.shape, 4 if sample.image.shape[1] < 40 else 2


class ByAspectInBatchSize(ByAspect):
    def batch_group_criterion(self, sample):
        return super().batch_group_criterion(sample)[0], None


def shapes(encoder, batch_size):
    dataset = energon.get_train_dataset(
        "shapes",
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=0),
        task_encoder=encoder,
    )
    return [batch.image.shape for _, batch in zip(range(40), energon.get_loader(dataset))]


assert {shape[0] for shape in shapes(ByAspect(), None)} == {6}
assert {tuple(shape) for shape in shapes(BySize(), None)} == {(4, 3, 32, 48), (2, 3, 48, 32), (2, 3, 40, 40)}
assert {shape[0] for shape in shapes(ByAspectInBatchSize(), 3)} == {3}
