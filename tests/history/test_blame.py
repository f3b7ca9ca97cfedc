"""Finding what raised the loss of a run: planted samples, shards and datasets, and ties."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metadatasets import write_v2
from planted_culprits import BATCH, SAMPLES, SHARDS, Filtering, blame_run, losses_of, make_texts, open_run

from benchmarks.blame_at_scale import Trials, made_up_stream, rank
from energon_grain import StateError, WorkerConfig, get_savable_loader, get_train_dataset
from energon_grain.errors import ConfigError
from energon_grain.history.blame import blame
from energon_grain.history.chance import Chance, Tail
from energon_grain.history.losses import Losses
from energon_grain.history.trend import CAP, compressed, residuals

PASSES = 6
STEPS = PASSES * SAMPLES // BATCH
CULPRIT = "000123"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_texts(tmp_path_factory.mktemp("blame") / "text", SAMPLES, SHARDS)


def of_culprit(height: float = 1.0) -> Any:
    return lambda record: height * (record.key == CULPRIT)


def test_a_sample_is_found_by_its_passes(path: Path) -> None:
    with open_run(path) as stream:
        found = blame_run(stream, losses_of(range(STEPS), stream.which, of_culprit()))
        used = [step for step in range(STEPS) if any(record.key == CULPRIT for record in stream.which(step))]
    first = found.samples[0]
    assert (first.key, first.kind, first.uses, first.sure) == (CULPRIT, "sample", PASSES, True)
    assert set(first.steps) <= set(used)
    assert len(first.steps) >= PASSES - 1
    assert [suspect.key for suspect in found.sure] == [CULPRIT]
    assert not any(suspect.sure for suspect in (*found.shards, *found.datasets))
    assert not found.replayed
    place = stream.spec.leaves[0].leaf.source.locate(first.index)
    assert (place.shard, place.key) == (first.shard, first.key)


def test_two_samples_are_found_though_one_is_a_hundred_times_worse(path: Path) -> None:
    """The samples that share its steps do not hide the other one."""
    height = {CULPRIT: 100.0, "000456": 1.5}
    with open_run(path) as stream:
        found = blame_run(stream, losses_of(range(STEPS), stream.which, lambda record: height.get(record.key, 0.0)))
    assert [suspect.key for suspect in found.sure] == [CULPRIT, "000456"]


@pytest.mark.parametrize("block", [None, 20])
def test_a_shard_is_found(path: Path, block: int | None) -> None:
    options: dict[str, Any] = {"max_samples_per_sequence": block, "shuffle_buffer_size": 20}
    with open_run(path, **(options if block else {})) as stream:
        losses = losses_of(range(STEPS), stream.which, lambda record: 0.5 * (record.shard == "shard_004.tar"))
        found = blame_run(stream, losses)
    assert [suspect.shard for suspect in found.shards if suspect.sure] == ["shard_004.tar"]
    assert found.shards[0].uses == SAMPLES // SHARDS * PASSES
    assert {suspect.shard for suspect in found.samples[:3]} == {"shard_004.tar"}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixture")
    for number, name in enumerate(("web", "code", "math")):
        make_texts(folder / name, 200 + 50 * number, 2)
    blend = [{"weight": 1, "path": name} for name in ("web", "code", "math")]
    return write_v2(folder, "mix.yaml", train={"blend": blend})


def test_a_dataset_is_found_by_losses_of_its_own(mixture: Path) -> None:
    rng = np.random.default_rng(1)
    lines = []
    for step in range(200):
        of = {name: 2 + 0.1 * float(rng.standard_normal()) for name in ("web", "code", "math")}
        of["code"] += 1.0 * (step in (60, 61, 130))
        lines.append(
            {"step": step, "train/loss": sum(of.values()) / 3, **{f"train/loss/{k}": v for k, v in of.items()}}
        )
    file = mixture.with_name("losses.jsonl")
    file.write_text("\n".join(map(json.dumps, lines)))
    with open_run(mixture) as stream:
        found = blame_run(stream, file)
    assert [Path(suspect.dataset).name for suspect in found.datasets if suspect.sure] == ["code"]
    assert [spike.step for spike in found.spikes] == [60, 61, 130]


def test_a_sample_of_a_mixture_is_found(mixture: Path) -> None:
    def added(record: Any) -> float:
        return 2.0 * (Path(record.dataset).name == "code" and record.key == CULPRIT)

    with open_run(mixture) as stream:
        found = blame_run(stream, losses_of(range(STEPS), stream.which, added))
    assert [(Path(suspect.dataset).name, suspect.key) for suspect in found.sure] == [("code", CULPRIT)]


@pytest.mark.parametrize("hosts", [1, 3])
def test_losses_of_samples_tell_the_samples_of_one_pass_apart(path: Path, hosts: int) -> None:
    """They are in the order of a gather over hosts."""
    rng = np.random.default_rng(0)
    losses: dict[int, list[float]] = {}
    with open_run(path, batch_size=4, hosts=hosts) as stream:
        culprit = stream.which(20)[3].key
        for step in range(40):
            records = sorted(stream.which(step), key=lambda record: (record.host, record.item))
            losses[step] = [2 + rng.standard_normal() / 3 + 12 * (record.key == culprit) for record in records]
        found = blame_run(stream, losses)
        assert found.samples[0].key == culprit
        assert found.samples[0].effect > 10 > found.samples[1].effect
        assert found.sure == ([found.samples[0]] if hosts > 1 else [])  # 160 losses on one host are few
        assert 20 in found.samples[0].steps
        losses[3] = losses[3][:-2]
        with pytest.raises(ConfigError, match=f"step 3 has {4 * hosts - 2} losses of samples, but {4 * hosts} items"):
            blame_run(stream, losses)


def test_samples_of_one_step_are_told_apart_by_their_other_steps(path: Path) -> None:
    with open_run(path) as stream:
        losses = losses_of(range(STEPS), stream.which, of_culprit())
        step = next(step for step in range(STEPS) if any(record.key == CULPRIT for record in stream.which(step)))
        found = blame_run(stream, losses, steps=[step])
        assert found.samples[0].key == CULPRIT
        assert {suspect.key for suspect in found.samples} <= {record.key for record in stream.which(step)}
        assert found.samples[0].uses == PASSES - 1
        assert [spike.step for spike in found.spikes] == [step]
        with pytest.raises(ConfigError, match="the losses have none of the steps 900 to 901; they have 0 to 449"):
            blame_run(stream, losses, steps=[900, 901])


def test_samples_that_one_step_alone_accuses_are_tied(path: Path) -> None:
    with open_run(path) as stream:
        found = blame_run(stream, {step: 2 + 0.01 * (step % 7) + 9 * (step == 20) for step in range(60)})
        assert {suspect.key for suspect in found.samples[:BATCH]} == {record.key for record in stream.which(20)}
    assert {suspect.tied for suspect in found.samples[:BATCH]} == {BATCH}
    assert found.sure == []
    assert found.samples[0].chance >= BATCH / 2
    assert f"{BATCH} samples have the same score" in str(found), str(found)


def test_a_run_without_a_culprit_accuses_nothing(path: Path) -> None:
    wrong = 0
    with open_run(path) as stream:
        for seed in range(20):
            found = blame_run(stream, losses_of(range(STEPS), lambda _: (), of_culprit(), seed=seed))
            wrong += any(suspect.sure for suspect in (*found.samples, *found.shards, *found.datasets))
    assert wrong <= 2


def test_a_batch_size_and_hosts_that_changed_are_followed(path: Path) -> None:
    with open_run(path, batch_size=4, hosts=2) as stream:
        for _ in range(100):
            next(stream)
        cursor = stream.cursor(with_manifest=True)
    with open_run(path, batch_size=6) as stream:
        stream.restore(cursor)
        for _ in range(500):
            next(stream)
        found = blame_run(stream, losses_of(range(600), stream.which, of_culprit(1.5)))
        assert [suspect.key for suspect in found.sure] == [CULPRIT]
        assert found.notes == []


def test_losses_that_are_means_and_count_from_one(path: Path) -> None:
    with open_run(path) as stream:
        of_steps = losses_of(range(STEPS), stream.which, of_culprit(8.0))
        logged = {step + 4: float(np.mean([of_steps[step + ahead] for ahead in range(4)])) for step in range(0, 448, 4)}
        found = blame_run(stream, logged, lag=1, mean_of=4)
        # The mean of the steps step - 3 … step, which the trainer counts from 1.
        assert found.samples[0].key == CULPRIT
        with pytest.raises(ConfigError, match="mean_of=5: the losses of steps 4 and 8 are closer than that"):
            blame_run(stream, logged, mean_of=5)
        with pytest.raises(ConfigError, match="lag=5: step 4 of the losses would be a step before the first one, 0"):
            blame_run(stream, logged, lag=5)
        with pytest.raises(ConfigError, match="mean_of=0: expected the number of steps"):
            blame_run(stream, logged, mean_of=0)


def test_where_samples_are_dropped_only_unusual_steps_are_made_again(path: Path) -> None:
    with open_run(path, task_encoder=Filtering()) as stream:
        keys = [list(next(stream).__key__) for _ in range(150)]
        rng = np.random.default_rng(0)
        losses = {step: 2 + 0.1 * rng.standard_normal() + (CULPRIT in own) for step, own in enumerate(keys)}
        found = blame_run(stream, losses)
    assert found.replayed
    assert found.samples[0].key == CULPRIT
    assert found.samples[0].steps == tuple(step for step, own in enumerate(keys) if CULPRIT in own)
    assert "so only 24 unusual steps and" in found.notes[0] or "unusual steps and" in found.notes[0]
    assert found.notes[0].endswith("were read and made again.")


def test_what_cannot_be_blamed_is_an_error(path: Path) -> None:
    with open_run(path) as stream:
        with pytest.raises(ConfigError, match="10 steps have a finite loss: a trend needs at least 16"):
            blame_run(stream, dict.fromkeys(range(10), 1.0))
        with pytest.raises(ConfigError, match="the losses do not differ from their trend at any step"):
            blame_run(stream, dict.fromkeys(range(40), 1.0))
        stream.skip(30)
        with pytest.raises(StateError, match="step 0: the run skipped 30 steps from 0 on"):
            blame_run(stream, {step: float(step % 3) for step in range(40)})
        found = blame_run(stream, {step: float(step % 3) for step in range(30, 90)})
        assert found.notes[0].startswith("60 of the steps are behind the state (step 30)")


def test_a_loss_that_is_not_finite_is_a_spike(path: Path) -> None:
    with open_run(path) as stream:
        losses = losses_of(range(STEPS), stream.which, lambda _: 0.0)
        used = [step for step in range(STEPS) if any(record.key == CULPRIT for record in stream.which(step))]
        losses |= dict.fromkeys(used, math.nan) | {STEPS - 2: math.inf, STEPS - 1: math.inf}
        found = blame_run(stream, losses)
    assert [suspect.key for suspect in found.sure] == [CULPRIT]
    assert f"{PASSES + 2} losses are not finite" in "\n".join(found.notes)
    assert STEPS - 1 not in [spike.step for spike in found.spikes]


def test_a_loader_answers_and_suspects_are_written(path: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, "seed": 5, "lanes": 12}
    config = WorkerConfig(rank=0, world_size=1)
    with get_savable_loader(get_train_dataset(path, batch_size=BATCH, worker_config=config, **options)) as loader:
        found = loader.blame(losses_of(range(STEPS), loader.which, of_culprit()), most=3)
    assert len(found.samples) == 3
    found.save_suspects(tmp_path / "sure.json", only_sure=True)
    assert json.loads((tmp_path / "sure.json").read_text()) == {"text": [CULPRIT]}
    found.save_suspects(tmp_path / "all.json")
    assert len(json.loads((tmp_path / "all.json").read_text())["text"]) == 3
    found.save_suspects(tmp_path / "sure.csv", only_sure=True)
    assert (tmp_path / "sure.csv").read_text().splitlines() == ["dataset,key", f"text,{CULPRIT}"]
    found.save_suspects(tmp_path / "sure.txt", only_sure=True)
    assert (tmp_path / "sure.txt").read_text() == f"text\t{CULPRIT}\n"


def test_a_trend_and_fading_noise_leave_residuals_of_one() -> None:
    rng = np.random.default_rng(0)
    time = np.arange(5000)
    values = 2 + 3 * np.exp(-time / 800) + rng.standard_normal(5000) * (0.1 + 0.2 * np.exp(-time / 1000))
    found = residuals(values, time)
    assert found.std() == pytest.approx(1, abs=0.1)
    assert [abs(found[begin : begin + 500].mean()) < 0.15 for begin in range(0, 5000, 500)] == [True] * 10
    values[3000] += 2
    assert int(np.argmax(residuals(values, time))) == 3000


def test_a_spike_that_fades_is_blamed_on_its_first_step() -> None:
    rng = np.random.default_rng(0)
    values = np.zeros(4000)
    for step in range(1, 4000):
        values[step] = 0.8 * values[step - 1] + rng.standard_normal() + 15 * (step == 2000)
    found = residuals(values, np.arange(4000))
    assert found[2000] > 10
    assert np.abs(found[2001:2010]).max() < 4


def test_the_bound_of_chance_holds_for_noise_of_any_kind() -> None:
    rng = np.random.default_rng(0)
    kinds: list[Any] = [rng.standard_normal(3000), rng.exponential(size=3000), (rng.random(3000) < 0.01) * CAP]
    for values in kinds:
        chance = Chance(values)
        for uses in (1, 4, 30):
            sums = rng.choice(values, (200_000, uses)).sum(axis=1) - uses * chance.mean
            for level in (0.1, 0.01, 0.001):
                score = np.quantile(sums, 1 - level)
                real = float((sums >= score).mean())
                bound = float(np.exp(chance.log_of(np.array([score]), np.array([float(uses)]))[0]))
                exact = float(np.exp(chance.exact_log_of(float(score), uses)))
                assert real * 0.8 <= exact <= bound * 1.001 <= 1.001, (uses, level)
                assert exact <= 1.3 * real, (uses, level)
    chance = Chance(kinds[0])
    assert chance.log_of(np.array([0.0, -1.0]), np.array([4.0, 4.0])).tolist() == [0, 0]


def test_the_tail_of_losses_of_items_is_that_of_their_distribution() -> None:
    rng = np.random.default_rng(0)
    normal, exponential = rng.standard_normal(20_000), rng.exponential(size=20_000)
    normal[:5] = 40
    assert Tail(normal).expected(4.5) < 5
    assert Tail(normal).expected(float(compressed(np.array([40.0]))[0])) < 1e-9
    assert 0.2 < Tail(exponential).expected(math.log(20_000)) < 5
    pareto = compressed(rng.pareto(2, 20_000))
    assert 0.1 < Tail(pareto).expected(float(compressed(np.array([np.sqrt(20_000) - 1]))[0])) < 10


def test_culprits_of_a_hundred_thousand_samples_are_found() -> None:
    """The benchmark, scaled down: in 95 of 100 trials, the culprit is among the first ten."""
    samples, trials_count = 100_000, 20
    culprits = np.random.default_rng(0).choice(samples, trials_count, replace=False)
    group = np.zeros(samples, np.int32)
    group[culprits] = np.arange(1, trials_count + 1)
    with made_up_stream(samples, 128, shards=100) as stream:
        trials = Trials.of(stream, 5 * samples // 128)
        used = trials.uses(group, trials_count + 1)[1:]
        found = [
            blame(trials.run, trials.place, trials.losses(used[seed], seed), dropped=False).samples
            for seed in range(trials_count)
        ]
    ranks = [
        rank(suspects, lambda suspect, culprit=culprit: suspect.index == culprit)
        for suspects, culprit in zip(found, culprits.tolist(), strict=True)
    ]
    assert sum(0 < place <= 10 for place in ranks) >= 19


def test_of_very_long_runs_the_highest_steps_are_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("energon_grain.history.blame._MOST_DRAWS", STEPS * BATCH // 3)
    monkeypatch.setattr("energon_grain.history.blame._PROBED", 40)
    with open_run(path) as stream:
        found = blame_run(stream, losses_of(range(STEPS), stream.which, of_culprit(2.0)))
        assert [suspect.key for suspect in found.sure] == [CULPRIT]
        assert found.samples[0].uses == PASSES
        shard = losses_of(range(STEPS), stream.which, lambda record: 0.7 * (record.shard == "shard_002.tar"))
        assert blame_run(stream, shard).shards[0].shard == "shard_002.tar"
    assert "of steps with the highest losses were counted." in found.notes[-1]


def test_losses_of_every_form_are_taken(path: Path, tmp_path: Path) -> None:
    with open_run(path) as stream:
        losses = losses_of(range(STEPS), stream.which, of_culprit())
        file = tmp_path / "losses.csv"
        file.write_text("step,loss\n" + "".join(f"{step},{loss!r}\n" for step, loss in losses.items()))
        steps, values = np.array([*losses]), np.array([*losses.values()])
        answers = [blame_run(stream, each) for each in (losses, file, str(file), Losses(steps=steps, values=values))]
    assert answers[0].samples == answers[1].samples == answers[2].samples == answers[3].samples
