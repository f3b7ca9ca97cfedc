"""Verify what a run of train.py delivered: every sample of every pass once, or not if excluded."""

import json
import sys
from collections import Counter
from pathlib import Path

from orbax.checkpoint import v1 as ocp

import energon_grain as eg

BAD = "code", "shard-000002.tar"  # train.py excludes it
mixture, run = sys.argv[1], Path(sys.argv[2]).resolve()
logs = [  # of each host, by step: a step that was made again after a restart replaces the lost one
    {step: (hosts, samples) for step, hosts, samples in map(json.loads, path.open())}
    for path in sorted(run.glob("samples-*.jsonl"))
]
dataset = eg.get_train_dataset(
    mixture, batch_size=48, shuffle_buffer_size=None, max_samples_per_sequence=None
)
with (
    eg.get_savable_loader(dataset) as loader,
    ocp.training.Checkpointer(run / "checkpoints") as ckpt,
):
    ckpt.load_checkpointables(None, {"loader": loader})
    for change in loader.amendments:
        print(f"step {change.step}, {change.note or 'mix.yaml'}: {change.after}")
    steps = loader.get_state()["step"]
    excluded_at = next((change.step for change in loader.amendments if change.excluded), steps)
    uses, bad_steps = Counter(), []
    for step in range(steps):
        records = [
            (Path(each.dataset).name, each.shard, each.key, each.epoch)
            for each in loader.which(step)
        ]
        hosts, _ = logs[0][step + 1]
        delivered = [tuple(each) for log in logs[:hosts] for each in log[step + 1][1]]
        assert Counter(delivered) == Counter((name, key) for name, _, key, _ in records)
        uses.update(records)
        bad_steps += [step for record in records if record[:2] == BAD]

assert all(step < excluded_at for step in bad_steps), "an excluded sample was used"
assert max(uses.values()) == 1, "a sample was repeated within a pass"
for name in sorted({name for name, *_ in uses}):
    passes = Counter(use[-1] for use in uses if use[0] == name and use[:2] != BAD)
    complete = [passes[epoch] for epoch in range(max(passes) - 1)]  # lanes end a pass in turn
    print(f"{name}: {sum(passes.values())} samples, complete passes of {complete}")
    assert len({*complete}) <= 1, "a sample was lost"
print(f"excluded: {len(bad_steps)} uses, all before step {excluded_at}")
print("nothing repeated, nothing lost")
