"""Pack captions into sequences of bounded length, with augmentation, and go on after saving in the middle."""

import torch

import energon_grain_torch as energon

MAX_LENGTH = 200


class Packing(energon.DefaultTaskEncoder):
    decoder = energon.SampleDecoder(image_decode="torchrgb")

    @energon.stateless(restore_seeds=True)
    def encode_sample(self, sample):
        sample.image = sample.image + 0.1 * torch.rand(sample.image.shape)
        return sample

    def select_samples_to_pack(self, samples):
        samples.sort(key=lambda sample: len(sample.caption))
        groups = []
        while samples:
            group = [samples.pop(0)]
            length = len(group[0].caption)
            while samples and length + len(samples[0].caption) < MAX_LENGTH:
                length += len(samples[0].caption)
                group.append(samples.pop(0))
            groups.append(group)
        return groups

    @energon.stateless
    def pack_selected_samples(self, samples):
        return energon.CaptioningSample(
            __key__=",".join(sample.__key__ for sample in samples),
            __restore_key__=(),
            __subflavors__=samples[0].__subflavors__,
            image=torch.stack([sample.image for sample in samples]),
            caption="".join(sample.caption for sample in samples),
        )


def make_loader():
    return energon.get_savable_loader(
        energon.get_train_dataset(
            "coco",
            batch_size=None,
            packing_buffer_size=15,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
            task_encoder=Packing(),
        )
    )


def steps(loader, n):
    return [(sample.__key__, sample.image.sum().item()) for _, sample in zip(range(n), loader)]


loader = make_loader()
for _, sample in zip(range(7), loader):
    assert len(sample.caption) < MAX_LENGTH
    assert len(sample.image) == sample.__key__.count(",") + 1
state = loader.save_state_rank()
expected = steps(loader, 5)

loader = make_loader()
loader.restore_state_rank(state)
assert steps(loader, 5) == expected
