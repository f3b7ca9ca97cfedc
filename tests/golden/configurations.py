"""Sixty ways to make a stream: every node, leaf and form of metadataset, ends of passes, drops and packs.

A configuration is a function of the backend (`energon_grain` or `energon_grain_torch`) and the place among the hosts.
It names data relative to the folder that `golden_data.write_all` wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from golden import golden_hooks as hooks

GLOBAL_BATCH = 8
"""Samples, packs or inner batches that a step delivers on all hosts together."""
BLOCKS: dict[str, Any] = {"shuffle_buffer_size": 100, "max_samples_per_sequence": 10}
FULL: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None}


def quiet(error: Exception, sample: Any, sources: Any = None) -> None:
    """An error handler that lets samples go without a word."""


@dataclass(frozen=True)
class Bench:
    """What a configuration is built with."""

    api: ModuleType
    rank: int
    hosts: int
    any_host: Callable[[bool], bool] | None = None

    @property
    def config(self) -> Any:
        agree = {} if self.any_host is None else {"any_host": self.any_host}
        return self.api.WorkerConfig(self.rank, self.hosts, 0, global_error_handler=quiet, **agree)

    @property
    def share(self) -> int:
        """Batch size of this host."""
        return GLOBAL_BATCH // self.hosts

    def encoder(self, name: str) -> Any:
        return hooks.encoders(self.api)[name]()

    def train(self, path: Any, encoder: str = "Plain", **options: Any) -> Any:
        given = {"batch_size": self.share, "seed": 3, **BLOCKS, **options}
        return self.api.get_train_dataset(path, worker_config=self.config, task_encoder=self.encoder(encoder), **given)

    def val(self, path: Any, encoder: str = "Plain", **options: Any) -> Any:
        given = {"batch_size": self.share, "split_part": "train", **options}
        return self.api.get_val_dataset(path, worker_config=self.config, task_encoder=self.encoder(encoder), **given)

    def samples(self, path: Any, **options: Any) -> Any:
        """Single samples, shuffled, of a finite pass."""
        return self.train(path, **{"batch_size": None, "repeat": False, **options})

    def batches(self, dataset: Any, **options: Any) -> Any:
        """The batches of a step over a dataset of samples, with a hook of their own."""
        return self.api.BatchDataset(dataset, self.share, hooks.several, worker_config=self.config, **options)


Build = Callable[[Bench], Any]


@dataclass(frozen=True)
class Configuration:
    """A stream and the numbers of hosts that it is recorded on."""

    build: Build
    hosts: tuple[int, ...] = (1, 4)


def _blend_of_batches(bench: Bench) -> Any:
    web, books = (bench.train(name, batch_size=size) for name, size in (("web", 4), ("books", 2)))
    return bench.api.BlendDataset((web, 0.75), (books, 0.25))


def _blend_per_step(bench: Bench) -> Any:
    web, books = (bench.train(name, batch_size=size) for name, size in (("web", 4), ("books", 2)))
    return bench.api.BlendDataset((web, 3), (books, 1), per_step=4)


def _mix(bench: Bench) -> Any:
    children = [(bench.train(name, batch_size=1), weight) for name, weight in (("web", 0.7), ("code", 0.3))]
    return bench.api.MixBatchDataset(*children, batch_size=bench.share, batch_mix_fn=bench.api.homogeneous_concat_mix)


def _epochized(bench: Bench) -> Any:
    children = ((bench.samples("code"), 2), (bench.samples("books"), 0.5))
    return bench.batches(bench.api.BlendEpochizedDataset(*children), last_batch="pad")


def _repeat(bench: Bench) -> Any:
    return bench.batches(bench.api.RepeatDataset(bench.samples("code"), repeats=1.5), last_batch="pad")


def _limit(bench: Bench) -> Any:
    return bench.batches(bench.api.LimitDataset(bench.samples("web"), 50), last_batch="drop")


def _concat(bench: Bench) -> Any:
    validation = [bench.val("val", limit=2), bench.val("code", limit=2)]
    return bench.api.ConcatDataset(*validation)


def _schedule(bench: Bench) -> Any:
    children = [bench.train(name, batch_size=None) for name in ("web", "books", "code")]
    schedule = [(0, [1, 0, 0]), (480, [2, 1, 1]), (960, [1, 0, 3])]
    return bench.batches(bench.api.BlendDataset(*children, schedule=schedule))


def _epochize(bench: Bench) -> Any:
    return bench.api.EpochizeDataset(bench.train("web"), length=7)


def _over(make: Callable[[ModuleType, Any], Any], path: str = "web", **options: Any) -> Build:
    """The batches of a node over an endless stream of samples."""

    def build(bench: Bench) -> Any:
        samples = bench.train(path, batch_size=None, lanes=12, **options)
        return bench.batches(make(bench.api, samples))

    return build


def _nested(bench: Bench) -> Any:
    """Packs, and filtered samples in groups, blended."""
    api = bench.api
    packed = api.PackingDataset(bench.train("web", batch_size=None, lanes=12), 20, hooks.select_by_size, hooks.several)
    kept = api.FilterDataset(bench.train("books", batch_size=None, lanes=12), hooks.keeps_some)
    grouped = api.GroupBatchDataset(kept, 3, hooks.by_length, hooks.several)
    return bench.batches(api.BlendDataset((packed, 2), (grouped, 1)))


def _mapping(api: ModuleType, samples: Any) -> Any:
    return api.MapDataset(api.MapDataset(samples, hooks.parts), hooks.note)


CONFIGURATIONS: dict[str, Configuration] = {
    # Leaves and orders
    "leaf, blocks": Configuration(lambda b: b.train("web"), (1, 2, 4)),
    "leaf, full shuffle": Configuration(lambda b: b.train("web", **FULL)),
    "leaf, in order": Configuration(lambda b: b.train("web", shuffle_over_epochs_multiplier=None)),
    "leaf, three passes as one": Configuration(lambda b: b.train("code", shuffle_over_epochs_multiplier=3)),
    "leaf, with replacement": Configuration(lambda b: b.train("code", shuffle_over_epochs_multiplier=-1)),
    "leaf, subset": Configuration(lambda b: b.train("web", subset=["10%", "60%"])),
    "leaf, global seeds": Configuration(lambda b: b.train("web", "Globals")),
    "leaf, 16 lanes": Configuration(lambda b: b.train("web", lanes=16)),
    "leaf, crude": Configuration(lambda b: b.train("crude", "Cooking")),
    "leaf, aux stores": Configuration(lambda b: b.train("aux.yaml", "Aux")),
    "leaf, JSONL": Configuration(lambda b: b.train("lines.jsonl", "Lines")),
    "leaf, ArrayRecord": Configuration(lambda b: b.train("records")),
    "leaf, arrays": Configuration(lambda b: b.train("digits.zarr", "Digits")),
    "leaf, pictures with broken ones": Configuration(lambda b: b.train("images", "Pictures")),
    "leaf, pictures as floats": Configuration(lambda b: b.train("images", "Floats"), (1,)),
    # Passes and their ends
    "pass, kept short": Configuration(lambda b: b.train("code", repeat=False), (1,)),
    "pass, padded": Configuration(lambda b: b.train("code", repeat=False, last_batch="pad")),
    "pass, last batch dropped": Configuration(lambda b: b.train("code", repeat=False, last_batch="drop")),
    "pass, virtual epochs": Configuration(lambda b: b.train("code", virtual_epoch_length=5)),
    "pass, validation": Configuration(lambda b: b.val("val")),
    "pass, validation with a limit": Configuration(lambda b: b.val("web", limit=5)),
    "pass, packed": Configuration(lambda b: b.val("web", "Packing", packing_buffer_size=20), (1, 2)),
    "pass, grouped": Configuration(lambda b: b.val("web", "Grouping"), (1, 2)),
    # Hooks
    "hooks, failing and skipping": Configuration(lambda b: b.train("web", "Failing"), (1, 2, 4)),
    "hooks, batches dropped": Configuration(lambda b: b.train("web", "FailingBatches"), (1,)),
    "hooks, generator": Configuration(lambda b: b.train("web", "Generating")),
    "hooks, packing": Configuration(lambda b: b.train("web", "Packing", packing_buffer_size=20), (1, 2, 4)),
    "hooks, packing with a rest": Configuration(lambda b: b.train("web", "Keeping", packing_buffer_size=20)),
    "hooks, groups": Configuration(lambda b: b.train("web", "Grouping")),
    "hooks, groups with sizes": Configuration(lambda b: b.train("web", "Sized", batch_size=None)),
    # Nodes
    "node, map": Configuration(_over(_mapping)),
    "node, filter": Configuration(_over(lambda api, samples: api.FilterDataset(samples, hooks.keeps_most))),
    "node, iterated": Configuration(
        _over(lambda api, samples: api.IterMapDataset(samples, hooks.pairs, inputs_per_call=9))
    ),
    "node, pack": Configuration(
        _over(lambda api, samples: api.PackingDataset(samples, 10, hooks.select_shuffled, hooks.several))
    ),
    "node, group": Configuration(
        _over(lambda api, samples: api.GroupBatchDataset(samples, 4, hooks.by_length, hooks.several))
    ),
    "node, inner batch": Configuration(_over(lambda api, samples: api.BatchDataset(samples, 3, hooks.several))),
    "node, shuffle buffer": Configuration(_over(lambda api, samples: api.ShuffleBufferDataset(samples, 40))),
    "node, blend of batches": Configuration(_blend_of_batches),
    "node, blend per step": Configuration(_blend_per_step),
    "node, blend with a schedule": Configuration(_schedule),
    "node, mixed batches": Configuration(_mix),
    "node, epochized blend": Configuration(_epochized),
    "node, repeat": Configuration(_repeat),
    "node, limit": Configuration(_limit),
    "node, concat": Configuration(_concat, (1,)),
    "node, epochize": Configuration(_epochize),
    "node, packs and groups blended": Configuration(_nested),
    # Metadatasets
    "metadataset, blend": Configuration(lambda b: b.train("blend.yaml"), (1, 2, 4)),
    "metadataset, packed blend": Configuration(lambda b: b.train("blend.yaml", "Packing", packing_buffer_size=20)),
    "metadataset, blend by cost": Configuration(lambda b: b.train("costs.yaml"), (1, 2, 4)),
    "metadataset, validation": Configuration(lambda b: b.val("blend.yaml", split_part="val")),
    "metadataset, epochs": Configuration(lambda b: b.train("epochs.yaml")),
    "metadataset, one epoch at a time": Configuration(lambda b: b.train("epochs.yaml", repeat=False)),
    "metadataset, nested": Configuration(lambda b: b.train("nested.yaml")),
    "metadataset, schedule": Configuration(lambda b: b.train("schedule.yaml")),
    "metadataset, concat": Configuration(lambda b: b.train("concat.yaml")),
    "metadataset, old form": Configuration(lambda b: b.train("old.yaml")),
    "metadataset, join": Configuration(lambda b: b.train("join.yaml")),
    "metadataset, blended join": Configuration(
        lambda b: b.train("blended_join.yaml", trusted_modules=[hooks.__name__])
    ),
    # By columns
    "columns, view": Configuration(lambda b: b.train("web", where="bytes.txt > 40 and bytes % 3 != 0")),
    "columns, planned packs": Configuration(
        lambda b: b.train("costs.yaml", "Planned", packing=b.api.PackingPlan("bytes.txt", 300, window=200)), (1, 3)
    ),
    "columns, planned packs of a pass": Configuration(
        lambda b: b.val("web", "Planned", packing=b.api.PackingPlan("bytes.txt", 300, window=200), last_batch="pad")
    ),
    "columns, batches by budget": Configuration(
        lambda b: b.train("blend.yaml", batch_size=b.api.CostBudget("bytes.txt", 600, window=200))
    ),
    "columns, equal work": Configuration(lambda b: b.train("blend.yaml", balance="bytes.txt + bytes.txt ** 2"), (2, 4)),
    # What nobody prepared
    "bare tars": Configuration(lambda b: b.train("bare", "Texts")),
}
