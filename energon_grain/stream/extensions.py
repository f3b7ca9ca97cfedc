# SPDX-License-Identifier: Apache-2.0
"""What the engine asks of extensions, by dotted name: each is imported when it is needed, and never by the kernel."""

from __future__ import annotations

from energon_grain.lazy_names import by_name

WHICH = "energon_grain.history.which.which"
"""The samples of a global batch: (`Run`, place of the stream, step, dropped=) -> `StepSamples`."""
RESTORE_SAMPLE = "energon_grain.history.replay.restore_sample"
"""A sample or batch again: (`Run`, restore key) -> sample."""
POOLS = {"process": "energon_grain.processes.pool.process_pool"}
"""By type of worker, `stream.workers.OwnPool`; threads are the engine's own."""
AMENDED_BY_STATE = "energon_grain.amendments.history.by_state"
"""The stream of a state with amendments, or of a state that a changed mixture continues; see there."""
AMENDED_NOW = "energon_grain.amendments.live.amended_now"
"""The stream of a running one whose mixture changes now; see there."""
LOG_SAMPLES = "energon_grain.watch.log_samples.LogSampleDataset"
"""The node that notes which samples went into each item: (dataset, "train" or "val", `WorkerConfig`)."""
LOOK_AHEAD = "energon_grain.stores.look_ahead.LookAhead"
"""Fetches from stores what coming samples take: (sources, in_process=, outlet=) -> `stream.look_ahead.LookAhead`."""
EQUAL_WORK = "energon_grain.planning.equal_work.EqualWork"
"""Gives hosts equal work: (`Balance`) -> `Placing`."""
BLEND_BY_COST = "energon_grain.planning.blend_by_cost.blend_by_cost"
"""Lowers a blend by cost: (`Lowering`, parts, schedule, unit of the weights) -> `Part`."""
COST_SHARES = "energon_grain.planning.cost_shares.cost_shares"
"""What the outermost blend promises of its leaves, where it is by cost: (`StreamSpec`) -> `CostShares` or None."""
ITEM_MAKER = "energon_grain.planning.pack_maker.PackMaker"
"""Makes planned items: (`ItemSpec` of each kind, lock for hooks) -> `stream.stage.ItemMaker`."""


extension = by_name
