"""energon-grain's programs: those of `peers/energon.py`, line by line, but for the first import."""

from __future__ import annotations

import json
from typing import Any

import simplejpeg  # noqa: F401

from benchmarks.steady import weigh_column
from energon_grain import (
    Cooker,
    DefaultTaskEncoder,
    Sample,
    SampleDecoder,
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


def _encoder(program: str) -> DefaultTaskEncoder:
    if program == "crude-text":
        return CrudeText()
    if program == "crude-blob":
        return CrudeBlob()
    encoder = DefaultTaskEncoder()
    if program != "plain":
        encoder.decoder = SampleDecoder(image_decode=program)
    return encoder


def build_loader(folder: str, program: str, workers: int, *, blocks: bool = True, savable: bool = False) -> Any:
    """The loader of a program: `crude-text`, `crude-blob`, `plain` (no user hook), or an image mode such as `rgb8`."""
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=32,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100 if blocks else None,
        task_encoder=_encoder(program),
    )
    return get_savable_loader(dataset) if savable else get_loader(dataset)


def weigh(batch: Any) -> tuple[int, int]:
    """Samples and payload bytes of a batch."""
    if isinstance(batch, Document):
        count, payload = weigh_column(batch.first)
        return count, payload + weigh_column(batch.second)[1]
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
