"""Hugging Face `datasets`, streamed without `shuffle`, whose buffer a checkpoint does not contain."""

from __future__ import annotations

from benchmarks.truth.loaders import hf_datasets


class Loader(hf_datasets.Loader):
    """The setting in which the page promises to resume "exactly where the checkpoint was saved"."""

    name = "HF datasets streaming, unshuffled"
    settings = hf_datasets.Loader.settings.replace(
        "shuffle(seed, buffer_size=1000), the default", "no shuffle"
    ).partition(". The page")[0]
    claims = hf_datasets.Loader.claims - {"shuffle"}
    shuffled = False
