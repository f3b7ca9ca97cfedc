"""restart: seconds from restore to the first batch after 10², 10⁴ and 10⁶ samples, and the bytes of the state.

One host without workers reads batches of 100 from one dataset of 10,000 samples in 16 tars, pass after pass, and saves.
A new process opens the loader, restores the state and takes one batch. The time is that of these three calls inside of
the process: its start and the imports are not counted. The page cache is warm.
"""

from __future__ import annotations

from benchmarks.truth.adapter import Dataset
from benchmarks.truth.checks.check import Check, Values
from benchmarks.truth.fleet import Fleet, Host
from benchmarks.truth.history import History, Part
from benchmarks.truth.play import Player, Record, data_of, run_of

BATCH = 100
AFTER = (100, 10_000, 1_000_000)
SLOW_S = 1800.0


def measure(fleet: Fleet, seed: int) -> Values:
    """Restart a run after each number of samples."""
    part = Part(hosts=1, workers=0, steps=1, saves=(), kill="none", delay_s=0.0, weights=(1.0,), datasets=1)
    dataset = Dataset(name="0-10000-16", samples=10_000, shards=16)
    history = History(seed=seed, datasets=(dataset,), global_batch=BATCH, pack=0, passes=0, parts=(part,), most_steps=1)
    values: Values = {}
    with data_of(history, fleet) as folder:
        states, done = list[list[str]](), 0
        (host,) = hosts = fleet.take(1)
        Player(history, part, hosts, Record(), (0, [])).open(folder)
        for samples in AFTER:
            host.send("skip", steps=samples // BATCH - done)
            host.answer(SLOW_S)
            done = samples // BATCH
            states.append([host.ask("save")])
        host.kill()
        fleet.give(hosts)
        run = run_of(history, part, folder).to_json()
        for samples, state in zip(AFTER, states, strict=True):
            hosts = fleet.take(1)
            values[f"seconds_{samples}"] = _restart(hosts[0], run, state)
            values[f"bytes_{samples}"] = len(state[0]) * 3 // 4
            hosts[0].kill()
            fleet.give(hosts)
    return values


def _restart(host: Host, run: dict[str, object], states: list[str]) -> float:
    """Return the seconds of opening, restoring and taking a batch in a new process."""
    host.send("open", run=run, states=states)
    opened = host.answer(SLOW_S)["seconds"]
    host.send("skip", steps=1)
    return opened + host.answer(SLOW_S)["seconds"]


CHECK = Check(name="restart", needs=lambda claims: "resume" in claims, measure=measure, most=3)
