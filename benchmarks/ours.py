"""energon-grain's programs: those of `peers/energon.py`, line by line, but for the first import.

And but for `rgb8-256`: there a hook resizes what the decoder made, here the decoder does both.
"""

from __future__ import annotations

import json
from typing import Any

import simplejpeg  # noqa: F401

from benchmarks.steady import weigh_column
from benchmarks.token_packing import greedy_packs, join, prepare_vocabulary, tokenize
from energon_grain import (
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


@edataclass
class Document(Sample):
    """What the cookers make: the first and the second part, as bytes."""

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
    """Several of them in one sequence."""

    tokens: Any
    segments: Any
    texts: int


class PackText(DefaultTaskEncoder):
    """Words to numbers, many texts to one sequence of 4,096."""

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
    """A row of a join: the texts of both data sets."""

    first: str
    second: str

    @staticmethod
    def from_joined(first: TextSample, second: TextSample) -> Pair:
        return Pair.derive_from(first, first=first.text, second=second.text)


def _encoder(program: str) -> DefaultTaskEncoder:
    if program == "crude-text":
        return CrudeText()
    if program == "crude-blob":
        return CrudeBlob()
    if program == "pack-text":
        prepare_vocabulary()
        return PackText()
    encoder = DefaultTaskEncoder()
    if program == "rgb8-256":
        encoder.decoder = SampleDecoder(image_decode="rgb8", image_size=256)
        return encoder
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
) -> Any:
    """The loader of a program: `crude-text`, `crude-blob`, `pack-text`, an image mode; no hook: `plain`, `join`.

    `rgb8-256` makes images of 256 x 256.
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
        task_encoder=_encoder(program),
        trusted_modules=[__name__],
    )
    return get_savable_loader(dataset) if savable else get_loader(dataset)


def weigh(batch: Any) -> tuple[int, int]:
    """Samples and payload bytes of a batch."""
    if isinstance(batch, (Document, Pair)):
        count, payload = weigh_column(batch.first)
        return count, payload + weigh_column(batch.second)[1]
    if isinstance(batch, Pack):
        return sum(batch.texts), weigh_column(batch.tokens)[1] + weigh_column(batch.segments)[1]
    return weigh_column(batch.image if hasattr(batch, "image") else batch.text)


def save(loader: Any) -> Any:
    """The loader's state."""
    return loader.get_state()


def restore(loader: Any, state: Any) -> None:
    """Set a new loader to a saved state."""
    loader.set_state(state)


def state_bytes(state: Any) -> int:
    """How large the state is in a checkpoint."""
    return len(state if isinstance(state, bytes) else json.dumps(state))
