# SPDX-License-Identifier: Apache-2.0
"""Extensions of the engine by dotted name. Each is imported when it is needed, and the kernel never imports one."""

from __future__ import annotations

from energon_grain.lazy_names import by_name

WHICH = "energon_grain.history.which.which"
"""The samples of a global batch: (`Run`, place in the stream, step, dropped=) -> `StepSamples`."""
WHEN = "energon_grain.history.when.when"
"""The uses of samples by a run: (`Run`, place in the stream, keys, dataset=, replay=, dropped=) -> `Uses`."""
SEEN = "energon_grain.history.seen.seen"
"""How often a run used each sample: (`Run`, place in the stream, step or None, dropped=) -> `Seen`."""
IS_ARITHMETIC = "energon_grain.history.which.is_arithmetic"
"""Whether the samples of a step follow from arithmetic: (`Run`, place in the stream, step, dropped=) -> bool."""
BLAME = "energon_grain.history.blame.blame"
"""Ranks samples by what they explain of unusual losses: (`Run`, place in the stream, losses, dropped=) -> `Blame`."""
RESTORE_SAMPLE = "energon_grain.history.replay.restore_sample"
"""Makes a sample or batch again: (`Run`, restore key) -> sample."""
POOLS = {
    "process": "energon_grain.processes.pool.process_pool",
    "ray": "energon_grain.cluster.ray_pool.own_ray_pool",
}
"""`stream.workers.OwnPool` by worker type. The engine itself provides threads."""
AMENDED_BY_STATE = "energon_grain.amendments.history.by_state"
"""The stream of a state with amendments, or of a state that a changed mixture continues; see there."""
MERGE_AMENDMENTS = "energon_grain.amendments.lane_rows.merged"
"""The amendments of the states of all hosts: (states) -> field of the merged state."""
AMENDED_NOW = "energon_grain.amendments.live.amended_now"
"""The stream after a change of a running mixture; see there."""
COOKING = "energon_grain.cooking.cooker.cooking"
"""The hook that makes typed samples of a crude leaf; see there."""
CHECK_AUX = "energon_grain.cooking.aux_stores.check_aux_has_a_cooker"
"""Refuses auxiliary stores that no cooker reads; see there."""
AMENDMENTS_UNTIL = "energon_grain.amendments.rewinding.amendments_until"
"""The amendments of a state that hold in an earlier step: (state, step) -> field of the state."""
REPLICAS = "energon_grain.replicas.group.take_replicas"
"""Sets rank, world size and replicas of a `WorkerConfig` from lists of ranks."""
OF_SHARDING = "energon_grain.replicas.sharding.of_sharding"
"""The arguments of a `WorkerConfig` for a JAX sharding: (sharding, global shape) -> rank, world size, replicas."""
LOG_SAMPLES = "energon_grain.watch.log_samples.LogSampleDataset"
"""The node that records which samples are in each item: (dataset, "train" or "val", `WorkerConfig`)."""
LOOK_AHEAD = "energon_grain.stores.look_ahead.LookAhead"
"""Prefetches samples from object stores: (sources, in_process=, outlet=) -> `stream.look_ahead.LookAhead`."""
EQUAL_WORK = "energon_grain.planning.equal_work.EqualWork"
"""Balances the work of hosts: (`Balance`) -> `Placing`."""
BLEND_BY_COST = "energon_grain.planning.blend_by_cost.blend_by_cost"
"""Lowers a blend by cost: (`Lowering`, parts, schedule, unit of the weights) -> `Part`."""
COST_SHARES = "energon_grain.planning.cost_shares.cost_shares"
"""Target shares of the leaves, if the outermost blend is by cost: (`StreamSpec`) -> `CostShares` or None."""
COLUMN_BATCHES = "energon_grain.column_batches.column_batches"
"""Makes batches without samples: (`StreamSpec`) -> None, or (chunk, function that returns `stream.stage.Fields` or
None, clock) -> the chunk with batches, as if its samples were made and batched, or None: they must be."""
KEEP_FREED_MEMORY = "energon_grain.memory_budget.allocator.keep_freed_memory"
"""Makes the C library keep freed memory for reuse: () -> None."""
ITEM_MAKER = "energon_grain.planning.pack_maker.PackMaker"
"""Makes planned items: (`ItemSpec` of each kind, lock for hooks) -> `stream.stage.ItemMaker`."""


extension = by_name
