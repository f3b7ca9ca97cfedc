"""`energon-grain checkpoint amend` and `checkpoint history`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run
from metadatasets import write_v2

from energon_grain import WorkerConfig, get_savable_loader, get_train_dataset
from energon_grain.testing import make_text_dataset


def mixture(root: Path, name: str, **weights: float) -> Path:
    entries = [{"path": path, "weight": weight} for path, weight in weights.items()]
    return write_v2(root, name, train={"blend": entries})


def loader(path: Path) -> Any:
    return get_savable_loader(
        get_train_dataset(
            path,
            batch_size=8,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            worker_config=WorkerConfig(0, 1, 0),
        )
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, n in {"large": 600, "small": 40, "new": 80}.items():
        make_text_dataset(tmp_path / name, n=n, shards=2)
    return tmp_path


def test_a_state_is_amended_listed_and_continued(root: Path) -> None:
    old = mixture(root, "old.yaml", large=3, small=1)
    with loader(old) as first:
        for _ in range(6):
            next(first)
        state = root / "state.json"
        state.write_text(json.dumps(first.save_state_rank()))
    new = mixture(root, "new.yaml", large=1, new=1)
    dry = run("checkpoint", "amend", state, "--to", new, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "From step 6 (item 48) on:" in dry.stdout
    changed = root / "changed.json"
    done = run("checkpoint", "amend", state, "--to", new, "--note", "more new", "-o", changed, "--json")
    assert done.exit_code == 0, done.output
    rows = {Path(row["name"].rpartition("/train")[0]).name: row for row in json.loads(done.stdout)}
    assert (rows["large"]["share_before"], rows["large"]["share_after"]) == (0.75, 0.5)
    assert (rows["small"]["share_after"], rows["small"]["drawn"], rows["small"]["samples"]) == (0, 12, 20)
    assert rows["small"]["never_seen"] == 8
    assert rows["new"]["share_after"] == 0.5
    listed = run("checkpoint", "history", changed)
    assert "1 change of the mixture until step 6." in listed.stdout
    assert "Step 6 (item 48): more new" in listed.stdout
    with loader(new) as continued, loader(new) as amended:
        continued.restore_state_rank(json.loads(changed.read_text()))
        amended.restore_state_rank(json.loads(state.read_text()), on_change="amend")
        assert [next(continued).__key__ for _ in range(5)] == [next(amended).__key__ for _ in range(5)]
        amended_state = root / "later.json"
        amended_state.write_text(json.dumps(continued.save_state_rank()))
    info = json.loads(run("checkpoint", "info", amended_state, "--json").stdout)
    drawn = {Path(leaf["name"].rpartition("/train")[0]).name: leaf["draws"] for leaf in info["leaves"]}
    assert (drawn["large"], drawn["new"]) == (36 + 20, 20)
    again = run("checkpoint", "amend", changed, "--to", new)
    assert "Nothing changes" in again.stdout


def test_a_state_without_changes_has_no_history(root: Path) -> None:
    with loader(mixture(root, "old.yaml", large=3, small=1)) as made:
        next(made)
        (root / "state.json").write_text(json.dumps(made.save_state_rank()))
    assert "0 changes of the mixture until step 1." in run("checkpoint", "history", root / "state.json").stdout


def test_what_cannot_be_amended_fails_with_the_reason(root: Path) -> None:
    with loader(mixture(root, "old.yaml", large=3, small=1)) as made:
        next(made)
        (root / "state.json").write_text(json.dumps(made.save_state_rank()))
    new = mixture(root, "new.yaml", large=1)
    done = run("checkpoint", "amend", root / "state.json", "--to", new, "--seed", 5)
    assert done.exit_code == 1
    assert "seed: was 0, is 5" in str(done.exception)


def test_samples_are_excluded_from_a_state(root: Path) -> None:
    mix, state, changed = mixture(root, "mix.yaml", large=3, small=1), root / "state.json", root / "changed.json"
    with loader(mix) as first:
        for _ in range(6):
            next(first)
        state.write_text(json.dumps(first.save_state_rank()))
    bad = root / "bad.txt"
    with loader(mix) as check:
        of_large = [each.key for step in range(6) for each in check.which(step) if Path(each.dataset).name == "large"]
    bad.write_text("".join(f"large\t{key}\n" for key in of_large[:3]))
    arguments = ("checkpoint", "amend", state, "--to", mix, "--exclude", bad, "--weights", "large=1,small=1")
    dry = run(*arguments, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "excluded" in dry.stdout
    assert "used in this pass" in dry.stdout
    done = run(*arguments, "-o", changed, "--note", "takedown", "--json")
    assert done.exit_code == 0, done.output
    rows = {Path(row["name"].rpartition("/train")[0]).name: row for row in json.loads(done.stdout)}
    assert (rows["large"]["excluded"], rows["large"]["excluded_used"], rows["small"]["excluded"]) == (3, 3, 0)
    assert (rows["large"]["share_before"], rows["large"]["share_after"]) == (0.75, 0.5)
    assert "Excluded: 3 samples of large/train." in run("checkpoint", "history", changed).stdout
    with loader(mix) as continued:
        continued.restore_state_rank(json.loads(changed.read_text()))
        later = [each for step in range(6, 200) for each in continued.which(step)]
    assert not {each.key for each in later if Path(each.dataset).name == "large"} & set(of_large[:3])
    whole = run("checkpoint", "amend", state, "--to", mix, "--exclude", f"large={','.join(of_large[:2])}", "--dry-run")
    assert whole.exit_code == 0, whole.output
    for wrong, said in [
        (["--exclude", "large=nothing"], "dataset 'large' has no sample or shard 'nothing'"),
        (["--exclude", "large=bytes > 1e9"], "holds for none of"),
        (["--exclude", "nothing.txt"], "is read as a file of keys"),
        (["--weights", "large"], "expected name=weight"),
        (["--exclude", "large=1", "--exclude", "large=2"], "given twice"),
    ]:
        done = run("checkpoint", "amend", state, "--to", mix, *wrong)
        assert done.exit_code, wrong
        assert said in f"{done.exception} {done.output}".replace("\n", " "), (wrong, done.output)


def test_samples_are_excluded_from_a_dataset_alone(root: Path) -> None:
    state, changed = root / "state.json", root / "changed.json"
    with loader(root / "large") as first:
        next(first)
        state.write_text(json.dumps(first.save_state_rank()))
        key = first.which(0)[0].key
    done = run("checkpoint", "amend", state, "--to", root / "large", "--exclude", f"large={key}", "-o", changed)
    assert done.exit_code == 0, done.output
    with loader(root / "large") as continued:
        continued.restore_state_rank(json.loads(changed.read_text()))
        assert all(each.key != key for step in range(1, 100) for each in continued.which(step))
