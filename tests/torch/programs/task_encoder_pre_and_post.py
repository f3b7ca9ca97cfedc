"""Encode a cheap part before packing and the rest after it: `preencode_sample` and `postencode_sample`."""

import torch

import energon_grain_torch as energon


class TwoSteps(energon.DefaultTaskEncoder):
    @energon.stateless
    def preencode_sample(self, sample):
        sample.caption = sample.caption.split()
        return sample

    @energon.stateless
    def postencode_sample(self, sample):
        sample.image = sample.image.mean(dim=(1, 2))
        return sample


class TwoStepsPacked(TwoSteps):
    def select_samples_to_pack(self, samples):
        samples.sort(key=lambda sample: len(sample.caption))
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    @energon.stateless
    def pack_selected_samples(self, samples):
        assert all(sample.image.shape == (3,) for sample in samples)
        return energon.CaptioningSample.derive_from(
            samples[0],
            image=torch.stack([sample.image for sample in samples]).mean(dim=0),
            caption=[word for sample in samples for word in sample.caption],
        )


for encoder, packing in ((TwoSteps(), {}), (TwoStepsPacked(), {"packing_buffer_size": 10})):
    dataset = energon.get_train_dataset(
        "coco",
        batch_size=3,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
        task_encoder=encoder,
        **packing,
    )
    for _, batch in zip(range(3), energon.get_loader(dataset)):
        assert batch.image.shape == (3, 3)
        assert [words.count("Something") for words in batch.caption] == [2 if packing else 1] * 3
