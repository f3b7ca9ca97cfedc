"""Change the weights of a mixture 20 times, as a restart with an edited configuration, and count the damage.

    python -m benchmarks.change_weights [--changes 20] [--seed 0] [FORM …]

Three datasets are mixed. Every few batches the state is saved and a new loader with other weights restores it. Each
sample has 1 to 40 tokens, each of which names its sample. At the end, samples of which fewer tokens were delivered than
they have are dropped, and samples of which more were delivered are repeated. In each dataset, only samples that precede
one that was delivered before the last 80 batches count, so samples in open packs are neither.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.child import program

NAMES: tuple[str, ...] = ("web", "code", "math")
CAPACITY, BATCH, LANES, TAIL = 64, 8, 24, 80
_SAMPLES = 40_000

Sample = tuple[int, int]
"""Number of the dataset, and place of the sample in the dataset's own order."""


def length_of(place: int) -> int:
    """Return the tokens of a sample, 1 to 40."""
    return 1 + place * 7919 % 40


@dataclass(slots=True)
class Delivered:
    """The tokens that a run delivered.

    Attributes:
        strides: Datasets are read in this many interleaved lanes, each in its own order.
    """

    strides: int = 1
    tokens: Counter[Sample] = field(default_factory=Counter[Sample])
    reached: dict[Sample, int] = field(default_factory=dict[Sample, int])

    def add(self, samples: dict[Sample, int], *, tail: bool) -> None:
        """Count the tokens of a batch; in the tail, they do not extend what has been reached."""
        self.tokens.update(samples)
        for number, place in () if tail else samples:
            lane = (number, place % self.strides)
            self.reached[lane] = max(self.reached.get(lane, 0), place)

    def damage(self) -> tuple[int, int]:
        """Return how many samples were dropped, and how many repeated."""
        dropped = sum(
            self.tokens[number, place] < length_of(place)
            for (number, lane), last in self.reached.items()
            for place in range(lane, last, self.strides)
        )
        return dropped, sum(count > length_of(place) for (_, place), count in self.tokens.items())


def changes(seed: int, count: int) -> Iterator[tuple[int, list[int]]]:
    """Yield the batches until each change of the weights, and the new weights."""
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.randrange(3, 30), [rng.randrange(1, 10) for _ in NAMES]


def grain(form: Callable[[list[Any], list[float]], Any], seed: int, count: int) -> tuple[int, int]:
    """Run Grain: a pipeline of three datasets and their weights, and what is in an element of it."""
    import grain

    datasets: list[Any] = []
    place_of: dict[int, Sample] = {}
    for number in range(len(NAMES)):
        shuffled = grain.MapDataset.source(range(_SAMPLES)).seed(number).shuffle()
        own = [shuffled[at] for at in range(_SAMPLES)]
        place_of |= {1 + number * _SAMPLES + key: (number, place) for place, key in enumerate(own)}
        lengths = {key: length_of(place) for place, key in enumerate(own)}
        datasets.append(shuffled.map(_Tokens(1 + number * _SAMPLES, lengths)))

    def made(weights: list[int]) -> Any:
        return iter(form(datasets, [weight / sum(weights) for weight in weights]))

    def tokens(batch: Any) -> dict[Sample, int]:
        batch = batch if isinstance(batch, list) else [batch]
        found = Counter(np.concatenate([each["tokens"].ravel() for each in batch]).tolist())
        return {place_of[token]: count for token, count in found.items() if token}

    return _run(made, tokens, Delivered(), seed, count)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Makes a sample of its number."""

    first: int
    lengths: dict[int, int]

    def __call__(self, key: int) -> dict[str, Any]:
        return {"tokens": np.full(self.lengths[key], self.first + key, np.int32)}


def _run(
    made: Callable[[list[int]], Any],
    tokens: Callable[[Any], dict[Sample, int]],
    found: Delivered,
    seed: int,
    count: int,
) -> tuple[int, int]:
    """Change the weights of Grain's pipeline again and again."""
    pipeline = made([3, 1, 1])
    for batches, weights in changes(seed, count):
        for _ in range(batches):
            found.add(tokens(next(pipeline)), tail=False)
        state = pipeline.get_state()
        pipeline = made(weights)
        pipeline.set_state(state)
    for number in range(2 * TAIL):
        found.add(tokens(next(pipeline)), tail=number >= TAIL)
    return found.damage()


def _iter_mix(datasets: list[Any], weights: list[float]) -> Any:
    """Return the mixture as MaxText makes it."""
    import grain

    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=1)
    return grain.IterDataset.mix([each.to_iter_dataset(options) for each in datasets], weights)


def _map_mix(datasets: list[Any], weights: list[float]) -> Any:
    import grain

    mixed = grain.MapDataset.mix(datasets, weights)
    return mixed.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=1))


def _first_fit(dataset: Any, bins: int = BATCH) -> Any:
    import grain.experimental as experimental

    return experimental.FirstFitPackIterDataset(
        dataset, length_struct={"tokens": CAPACITY}, num_packing_bins=bins, shuffle_bins=False
    )


def _concat_then_split(dataset: Any) -> Any:
    import grain.experimental as experimental

    return experimental.ConcatThenSplitIterDataset(dataset, length_struct={"tokens": CAPACITY})


GRAIN_FORMS: dict[str, Callable[[list[Any], list[float]], Any]] = {
    "IterDataset.mix, batches": lambda d, w: _iter_mix(d, w).batch(BATCH, batch_fn=list),
    "IterDataset.mix, first-fit bins equal to the batch": lambda d, w: _first_fit(_iter_mix(d, w)).batch(BATCH),
    "IterDataset.mix, first-fit, saved inside the bins": lambda d, w: _first_fit(_iter_mix(d, w)),
    "IterDataset.mix, concat-then-split": lambda d, w: _concat_then_split(_iter_mix(d, w)).batch(BATCH),
    "MapDataset.mix, batches": lambda d, w: _map_mix(d, w).batch(BATCH, batch_fn=list),
    "MapDataset.mix, first-fit, batches": lambda d, w: _first_fit(_map_mix(d, w)).batch(BATCH),
}


@dataclass(frozen=True, slots=True)
class Ours:
    """A form of our loader.

    Attributes:
        packed: Whether samples are packed, first fit; states are then saved while lanes hold samples.
        hosts: Numbers of hosts that the run uses in turn.
        changes_datasets: Whether datasets are removed and added again, too.
        on_change: How the changed configuration continues.
    """

    packed: bool = False
    hosts: tuple[int, ...] = (1,)
    changes_datasets: bool = False
    on_change: str = "amend"


OUR_FORMS = {
    "ours: position": Ours(on_change="position"),
    "ours: batches": Ours(),
    "ours: batches, other hosts": Ours(hosts=(1, 2, 4)),
    "ours: batches, datasets removed and added": Ours(changes_datasets=True),
    "ours: first-fit, saved anywhere": Ours(packed=True),
    "ours: first-fit, saved anywhere, other hosts": Ours(packed=True, hosts=(1, 2, 4)),
}


def ours(form: Ours, seed: int, count: int) -> tuple[int, int]:
    """Run our loader over three prepared datasets."""
    from energon_grain import merge_cursors
    from energon_grain.testing import make_text_dataset

    found = Delivered(strides=LANES)
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            make_text_dataset(Path(folder, name), n=2_000, shards=2, text_bytes=10)
        hosts = form.hosts[0]
        loaders = _loaders(Path(folder), form, dict(zip(NAMES, (3, 1, 1), strict=True)), hosts)
        for turn, (batches, weights) in enumerate(changes(seed, count), 1):
            for _ in range(batches):
                found.add(_tokens_of(loaders), tail=False)
            state = merge_cursors([loader.save_state_rank() for loader in loaders])
            named = dict(zip(NAMES, weights, strict=True))
            if form.changes_datasets and rng.random() < 0.6:
                del named[rng.choice(NAMES)]
            _close(loaders)
            hosts = form.hosts[turn % len(form.hosts)]
            loaders = _loaders(Path(folder), form, named, hosts)
            for loader in loaders:
                loader.restore_state_rank(state, on_change=form.on_change)
        for number in range(2 * TAIL):
            found.add(_tokens_of(loaders), tail=number >= TAIL)
        _close(loaders)
    return found.damage()


def _loaders(folder: Path, form: Ours, weights: dict[str, int], hosts: int) -> list[Any]:
    from energon_grain import WorkerConfig, get_savable_loader, get_train_dataset

    yaml = folder / "mixture.yaml"
    lines = [
        f"    - {{weight: {weight}, path: {name}, subflavors: {{of: {name}}}}}" for name, weight in weights.items()
    ]
    head = ["__module__: megatron.energon", "__class__: MetadatasetV2", "splits:", "  train:", "    blend:"]
    yaml.write_text("\n".join([*head, *lines]) + "\n")
    packing: dict[str, Any] = {"packing_buffer_size": 12} if form.packed else {}
    return [
        get_savable_loader(
            get_train_dataset(
                yaml,
                worker_config=WorkerConfig(host, hosts),
                batch_size=BATCH // hosts,
                shuffle_buffer_size=100,
                max_samples_per_sequence=20,
                lanes=LANES,
                task_encoder=_encoder(),
                **packing,
            )
        )
        for host in range(hosts)
    ]


def _encoder() -> Any:
    from energon_grain import TaskEncoder, first_fit_decreasing

    class Encoder(TaskEncoder[Any, Any, Any, Any]):
        """Samples of as many tokens as Grain's, which name them."""

        def encode_sample(self, sample: Any) -> Any:
            number, place = NAMES.index(sample.__subflavors__["of"]), sample.__restore_key__[2]
            sample.text = {(number, place): length_of(place)}
            return sample

        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            return first_fit_decreasing(samples, length=lambda each: sum(each.text.values()), capacity=CAPACITY)

        def pack_selected_samples(self, samples: list[Any]) -> Any:
            samples[0].text = _joined(sample.text for sample in samples)
            return samples[0]

        def batch(self, samples: list[Any]) -> Any:
            return _joined(sample.text for sample in samples)

    return Encoder()


def _joined(parts: Any) -> dict[Sample, int]:
    joined: dict[Sample, int] = defaultdict(int)
    for part in parts:
        for sample, tokens in part.items():
            joined[sample] += tokens
    return joined


def _tokens_of(loaders: list[Any]) -> dict[Sample, int]:
    return _joined(next(loader) for loader in loaders)


def _close(loaders: list[Any]) -> None:
    for loader in loaders:
        loader.close()


def damage(form: str, seed: int = 0, count: int = 20) -> dict[str, Any]:
    """Return the dropped and repeated samples of a form."""
    dropped, repeated = (
        ours(OUR_FORMS[form], seed, count) if form in OUR_FORMS else grain(GRAIN_FORMS[form], seed, count)
    )
    return {"dropped": dropped, "repeated": repeated}


def main(
    forms: Annotated[list[str] | None, typer.Argument(help="Forms to run. Default: all.")] = None,
    changes: Annotated[int, typer.Option(help="Changes of the weights.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the changes.")] = 0,
) -> None:
    known = [*GRAIN_FORMS, *OUR_FORMS]
    if unknown := set(forms or ()) - {*known}:
        sys.exit(f"unknown form {', '.join(sorted(unknown))}; the forms are: {'; '.join(known)}")
    print("| form | dropped | repeated |\n|---|---|---|")
    for form in forms or known:
        found = damage(form, seed, changes)
        print(f"| {form} | {found['dropped']:,} | {found['repeated']:,} |", flush=True)


if __name__ == "__main__":
    program(main, damage=damage)
