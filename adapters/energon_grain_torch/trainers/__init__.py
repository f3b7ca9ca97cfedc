# SPDX-License-Identifier: Apache-2.0
"""Trainers of other projects on our loader: exact resume on any number of ranks, and no batching of batches.

Each module needs the package of its trainer and is imported by its own name:

* `hf`: `EnergonTrainer`, a `transformers.Trainer`
* `lightning`: `EnergonDataModule`, a `LightningDataModule`
* `accelerate`: `prepare`, which returns a loader for a training loop with an `accelerate.Accelerator`
"""
