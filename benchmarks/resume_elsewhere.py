"""Resume each loader with other workers or hosts than it was saved with, and print what happens.

    python -m benchmarks.resume_elsewhere [ours | statefuldataloader | datasets | litdata | webdataset | lhotse ...]

Without names it runs every loader that is installed: `make peers` installs LitData, webdataset and Hugging Face
`datasets`; torchdata is in the development environment; Lhotse is `pip install lhotse`.
"""

from __future__ import annotations

import collections
import importlib.util
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def ours() -> str:
    """Two hosts are saved, three continue."""
    from energon_grain import WorkerConfig, get_savable_loader, get_train_dataset
    from energon_grain.testing import make_text_dataset

    def loaders(root: Path, hosts: int) -> list[Any]:
        return [
            get_savable_loader(
                get_train_dataset(
                    root,
                    worker_config=WorkerConfig(rank=rank, world_size=hosts),
                    batch_size=24 // hosts,
                    shuffle_buffer_size=100,
                    max_samples_per_sequence=100,
                )
            )
            for rank in range(hosts)
        ]

    def global_batch(hosts: list[Any]) -> list[str]:
        return sorted(key for host in hosts for key in next(host).__key__)

    with tempfile.TemporaryDirectory() as folder:
        root = make_text_dataset(Path(folder, "texts"), n=1000)
        two = loaders(root, 2)
        for _ in range(5):
            global_batch(two)
        state = two[0].save_state_rank()
        three = loaders(root, 3)
        for host in three:
            host.restore_state_rank(state)
        same = all(global_batch(two) == global_batch(three) for _ in range(50))
    return f"two hosts saved, three resumed: {'the same' if same else 'different'} global batches"


def statefuldataloader() -> str:
    """Two workers are saved, one continues."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader(workers: int) -> Any:
        return StatefulDataLoader(range(48), batch_size=4, shuffle=True, num_workers=workers)  # type: ignore[arg-type]

    first = loader(2)
    next(iter(first))
    second = loader(1)
    second.load_state_dict(first.state_dict())
    return _outcome("two workers saved, one resumed", lambda: str(next(iter(second))))


def datasets() -> str:
    """A shuffled stream is saved and continued in the same process."""
    from datasets import Dataset

    stream = Dataset.from_dict({"n": range(1000)}).to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=100)
    seen = list[int]()
    state: Any = None
    for row in stream:
        seen.append(row["n"])
        if len(seen) == 300:
            state = stream.state_dict()
            break
    stream.load_state_dict(state)
    return "shuffled, saved after 300 of 1,000 rows: " + _counted(seen + [row["n"] for row in stream], 1000)


def litdata() -> str:
    """One dataset and a mixture of two: two workers are saved, one continues."""
    import litdata

    def resumed(dataset: Callable[[], Any]) -> list[int]:
        first = litdata.StreamingDataLoader(dataset(), batch_size=4, num_workers=2)
        seen, state = list[int](), None
        for batch in first:
            seen += batch.tolist()
            if len(seen) == 24:
                state = first.state_dict()
                break
        second = litdata.StreamingDataLoader(dataset(), batch_size=4, num_workers=1)
        second.load_state_dict(state)
        return seen + [number for batch in second for number in batch.tolist()]

    with tempfile.TemporaryDirectory() as folder:
        for name, numbers in (("a", range(200)), ("b", range(1000, 1200))):
            litdata.optimize(_same, list(numbers), output_dir=f"{folder}/{name}", chunk_size=50, num_workers=1)

        def one(name: str = "a") -> Any:
            return litdata.StreamingDataset(f"{folder}/{name}", shuffle=True)

        def mixture() -> Any:
            return litdata.CombinedStreamingDataset([one(), one("b")], weights=[0.7, 0.3], iterate_over_all=False)

        single = _outcome("one dataset", lambda: _counted(resumed(one), 200))
        mixed = _outcome("a mixture", lambda: f"{len(resumed(mixture))} samples")
    return f"two workers saved, one resumed: {single}; {mixed}"


def _same(number: int) -> int:
    return number


def webdataset() -> str:
    """Whether there is a state to save."""
    import webdataset

    found = [each for each in (webdataset.WebDataset, webdataset.WebLoader) if hasattr(each, "state_dict")]
    return f"classes with state_dict: {len(found)} of 2"


def lhotse() -> str:
    """Two ranks are saved, four continue."""
    from lhotse import CutSet, MonoCut
    from lhotse.dataset import SimpleCutSampler

    cuts = CutSet.from_cuts(MonoCut(id=str(n), start=0, duration=1, channel=0) for n in range(100))

    def sampler(ranks: int) -> Any:
        return SimpleCutSampler(cuts, max_cuts=4, shuffle=True, world_size=ranks, rank=0)

    saved = sampler(2)
    next(iter(saved))
    return _outcome("two ranks saved, four resumed", lambda: str(sampler(4).load_state_dict(saved.state_dict())))


def _outcome(case: str, run: Callable[[], str]) -> str:
    try:
        return f"{case}: {run()}"
    except Exception as error:
        return f"{case}: {type(error).__name__} {' '.join(str(error).split())}".strip()


def _counted(seen: Iterable[int], expected: int) -> str:
    counts = collections.Counter(seen)
    repeated = sum(count > 1 for count in counts.values())
    return f"{expected - len(counts)} missing, {repeated} repeated"


LOADERS = {
    "ours": ("energon_grain", ours),
    "statefuldataloader": ("torchdata", statefuldataloader),
    "datasets": ("datasets", datasets),
    "litdata": ("litdata", litdata),
    "webdataset": ("webdataset", webdataset),
    "lhotse": ("lhotse", lhotse),
}


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    for name in names or LOADERS:
        package, run = LOADERS[name]
        if importlib.util.find_spec(package) is None:
            print(f"{name}: {package} is not installed")
        else:
            print(f"{name}: {run()}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
