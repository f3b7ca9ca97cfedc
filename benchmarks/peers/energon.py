"""Megatron-Energon's programs, which `ours.py` and `ours_torch.py` also run, with another library under its name."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import PIL.Image  # noqa: F401
from megatron.energon import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SampleDecoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    stateless,
)

from benchmarks.steady import weigh_column
from benchmarks.token_packing import greedy_packs, join, prepare_vocabulary, tokenize


@edataclass
class Document(Sample):
    """The result of the cookers: the first and the second part, as bytes."""

    first: bytes
    second: bytes


@stateless
def _cook_text(sample: Any) -> Document:
    return Document(**basic_sample_keys(sample), first=sample["txt"], second=sample["json"])


@stateless
def _cook_blob(sample: Any) -> Document:
    return Document(**basic_sample_keys(sample), first=sample["bin"], second=sample["json"])


class CrudeText(DefaultTaskEncoder):
    """Raw parts, cooked into a `Document`."""

    decoder = None
    cookers = (Cooker(_cook_text),)


class CrudeBlob(DefaultTaskEncoder):
    """Raw parts, cooked into a `Document`."""

    decoder = None
    cookers = (Cooker(_cook_blob),)


@edataclass
class Tokens(Sample):
    """A tokenized text."""

    tokens: Any


@edataclass
class Pack(Sample):
    """Several tokenized texts in one sequence."""

    tokens: Any
    segments: Any
    texts: int


class PackText(DefaultTaskEncoder):
    """Turns words into numbers, and many texts into one sequence of 4,096."""

    @stateless
    def encode_sample(self, sample: TextSample) -> Tokens:
        return Tokens.derive_from(sample, tokens=tokenize(sample.text))

    def select_samples_to_pack(self, samples: list[Tokens]) -> list[list[Tokens]]:
        return greedy_packs(samples)

    @stateless
    def pack_selected_samples(self, samples: list[Tokens]) -> Pack:
        tokens, segments = join([sample.tokens for sample in samples])
        key = ",".join([sample.__key__ for sample in samples])
        return Pack(__key__=key, __restore_key__=(), tokens=tokens, segments=segments, texts=len(samples))


@edataclass
class Pair(Sample):
    """A row of a join: the texts of both datasets."""

    first: str
    second: str

    @staticmethod
    def from_joined(first: TextSample, second: TextSample) -> Pair:
        return Pair.derive_from(first, first=first.text, second=second.text)


class Resized(DefaultTaskEncoder):
    """Resizes images to 256 x 256 with Pillow's bicubic filter."""

    decoder = SampleDecoder(image_decode="pilrgb")

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        sample.image = np.asarray(sample.image.resize((256, 256)))
        return sample


def _encoder(program: str) -> DefaultTaskEncoder:
    if program == "crude-text":
        return CrudeText()
    if program == "crude-blob":
        return CrudeBlob()
    if program == "pack-text":
        prepare_vocabulary()
        return PackText()
    if program == "rgb8-256":
        return Resized()
    encoder = DefaultTaskEncoder()
    if program not in ("plain", "join"):
        encoder.decoder = SampleDecoder(image_decode=program)
    return encoder


def build_loader(
    folder: str,
    program: str,
    workers: int,
    *,
    worker_type: str = "",
    blocks: bool = True,
    shuffle_buffer: int = 100,
    savable: bool = False,
    encoder: Any = None,
    **more: Any,
) -> Any:
    """Return the loader of a program: `crude-text`, `crude-blob`, `pack-text`, an image mode; no hook: `plain`, `join`.

    `rgb8-256` makes images of 256 x 256. `encoder` replaces the program's; `more` is passed to `get_train_dataset`.
    """
    kind: Any = {"worker_type": worker_type} if worker_type else {}
    packed = program == "pack-text"
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers, **kind),
        batch_size=4 if packed else 32,
        packing_buffer_size=100 if packed else None,
        shuffle_buffer_size=shuffle_buffer,
        max_samples_per_sequence=100 if blocks else None,
        task_encoder=encoder or _encoder(program),
        **more,
    )
    return get_savable_loader(dataset) if savable else get_loader(dataset)


def weigh(batch: Any) -> tuple[int, int]:
    """Return the samples and payload bytes of a batch."""
    if isinstance(batch, (Document, Pair)):
        count, payload = weigh_column(batch.first)
        return count, payload + weigh_column(batch.second)[1]
    if isinstance(batch, Pack):
        return sum(batch.texts), weigh_column(batch.tokens)[1] + weigh_column(batch.segments)[1]
    return weigh_column(batch.image if hasattr(batch, "image") else batch.text)


def save(loader: Any) -> Any:
    """Return the loader's state."""
    return loader.save_state_rank()


def restore(loader: Any, state: Any) -> None:
    """Set a new loader to a saved state."""
    loader.restore_state_rank(state)


def state_bytes(state: Any) -> int:
    """Return the size of the state in a checkpoint."""
    return len(pickle.dumps(state))
