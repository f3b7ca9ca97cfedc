"""Combine datasets in the task encoder: batches of one dataset each, blended; and virtual epochs."""

from pathlib import Path

import energon_grain_torch as energon

Path("metadataset.yaml").write_text("""
__module__: megatron.energon
__class__: MetadatasetV2
splits:
  train:
    blend:
      - {weight: 2, path: ./coco}
      - {weight: 1, path: ./coyo}
""")


class BlendThenBatch(energon.DefaultTaskEncoder):
    def build_train_datasets(
        self,
        *,
        datasets,
        worker_config,
        batch_size,
        batch_drop_last=False,
        packing_buffer_size=None,
        virtual_epoch_length=0,
        shuffle_buffer_size=None,
        **others,
    ):
        dataset = energon.BlendDataset(*self.inputs(datasets, worker_config, batch_size), worker_config=worker_config)
        dataset = self.over_the_blend(dataset, worker_config, batch_size)
        if virtual_epoch_length > 0:
            dataset = energon.EpochizeDataset(dataset, length=virtual_epoch_length, worker_config=worker_config)
        return dataset

    def inputs(self, datasets, worker_config, batch_size):
        return [
            (energon.RepeatDataset(loaded.dataset.build(), worker_config=worker_config), loaded.weight)
            for loaded in datasets
        ]

    def over_the_blend(self, dataset, worker_config, batch_size):
        return self.build_batch(dataset, batch_size=batch_size, worker_config=worker_config)


class BatchThenBlend(BlendThenBatch):
    def inputs(self, datasets, worker_config, batch_size):
        return [
            (self.build_batch(dataset, batch_size=batch_size, worker_config=worker_config), weight)
            for dataset, weight in super().inputs(datasets, worker_config, batch_size)
        ]

    def over_the_blend(self, dataset, worker_config, batch_size):
        return dataset


for encoder in (BlendThenBatch(), BatchThenBlend()):
    loader = energon.get_loader(
        energon.get_train_dataset(
            "metadataset.yaml",
            batch_size=5,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            virtual_epoch_length=30,
            worker_config=energon.WorkerConfig.default_worker_config(num_workers=2),
            task_encoder=encoder,
        )
    )
    batches = [batch.__key__ for batch in loader]
    assert len(batches) == 30
    mixed = sum(len({key.partition("_")[0] for key in keys}) > 1 for keys in batches)
    assert (mixed == 0) == isinstance(encoder, BatchThenBlend)
