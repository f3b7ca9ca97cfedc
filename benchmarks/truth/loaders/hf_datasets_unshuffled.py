"""Hugging Face `datasets`, streamed without `shuffle`, whose buffer a checkpoint does not contain."""

from __future__ import annotations

from benchmarks.truth.loaders import hf_datasets


class Loader(hf_datasets.Loader):
    """The setting in which the page promises to resume "exactly where the checkpoint was saved"."""

    name = "HF datasets streaming, unshuffled"
    settings = "no shuffle; all else as with shuffle"
    claims = hf_datasets.Loader.claims - {"shuffle"}
    shuffled = False
