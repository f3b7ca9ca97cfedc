"""The slice of a commit: of the slowest test modules, a run with `--slice` takes every fourth test.

The commit chooses the quarter, by the hash of its tree, so the same commit always runs the same tests, in each process
and on each machine, and over many commits each quarter runs as often. `make test` and `.ci/run` slice; `make test-all`
and plain `pytest` run everything.

`python tests/slices.py build/durations.xml` prints the modules that are slow enough for the list below and not on it,
and the reverse.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUARTERS = 4
SLOW_S = 3.0  # a module that takes less is not worth a gap in a commit

SLICED = frozenset(
    {
        "tests/amendments/test_amending.py",
        "tests/amendments/test_costs.py",
        "tests/amendments/test_epochized.py",
        "tests/amendments/test_exclusions.py",
        "tests/amendments/test_histories.py",
        "tests/amendments/test_plans.py",
        "tests/amendments/test_reweight.py",
        "tests/amendments/test_windows.py",
        "tests/cli/test_all_commands.py",
        "tests/cli/test_bench.py",
        "tests/cli/test_blame.py",
        "tests/cli/test_commands_on_stores.py",
        "tests/cli/test_lint.py",
        "tests/cli/test_mixtures.py",
        "tests/cli/test_prepare_command.py",
        "tests/cli/test_preview.py",
        "tests/cli/test_receipts.py",
        "tests/cli/test_rewind.py",
        "tests/cli/test_terminal.py",
        "tests/cli/test_uses.py",
        "tests/cluster/test_ray_pool.py",
        "tests/conversion/test_convert.py",
        "tests/datasets/test_array_leaf.py",
        "tests/datasets/test_array_record_leaf.py",
        "tests/datasets/test_aux.py",
        "tests/datasets/test_bare_tars.py",
        "tests/datasets/test_blend_by_cost.py",
        "tests/datasets/test_cache_pools.py",
        "tests/datasets/test_leaf.py",
        "tests/datasets/test_multi_epoch.py",
        "tests/datasets/test_where.py",
        "tests/docs/test_code_blocks.py",
        "tests/docs/test_published.py",
        "tests/examples/test_jax_trainers.py",
        "tests/examples/test_mixture.py",
        "tests/examples/test_programs.py",
        "tests/examples/test_trainers.py",
        "tests/formats/test_array_record.py",
        "tests/formats/test_columnar.py",
        "tests/formats/test_data_folder.py",
        "tests/formats/test_jsonl.py",
        "tests/formats/test_local_files.py",
        "tests/formats/test_nv_meta.py",
        "tests/formats/test_shard_scan.py",
        "tests/history/test_blame.py",
        "tests/history/test_receipts.py",
        "tests/history/test_when.py",
        "tests/loader/test_device.py",
        "tests/loader/test_grain.py",
        "tests/loader/test_leaf_of.py",
        "tests/loader/test_misuse.py",
        "tests/loader/test_pytree.py",
        "tests/loader/test_read_ahead.py",
        "tests/loader/test_script_end.py",
        "tests/loader/test_worker_processes.py",
        "tests/media/test_av_decoder.py",
        "tests/media/test_lazy_parts.py",
        "tests/media/test_seek_index.py",
        "tests/metadataset/test_joins.py",
        "tests/plugins/test_plugins.py",
        "tests/prepare/test_join_build.py",
        "tests/prepare/test_measure.py",
        "tests/prepare/test_media.py",
        "tests/prepare/test_prepare_in_store.py",
        "tests/prepare/test_ray_executor.py",
        "tests/prepare/test_scanning.py",
        "tests/prepare/test_writer.py",
        "tests/replicas/test_kills.py",
        "tests/replicas/test_meshes.py",
        "tests/replicas/test_threads.py",
        "tests/sources/test_arrays.py",
        "tests/sources/test_file_stores.py",
        "tests/sources/test_forms_without_preparation.py",
        "tests/sources/test_joined.py",
        "tests/sources/test_parquet.py",
        "tests/sources/test_webdataset.py",
        "tests/storage/test_addresses.py",
        "tests/storage/test_epath.py",
        "tests/storage/test_hub.py",
        "tests/storage/test_object_client.py",
        "tests/storage/test_page_cache.py",
        "tests/storage/test_remote_datasets.py",
        "tests/storage/test_remote_files.py",
        "tests/storage/test_verify.py",
        "tests/stream/operators/test_packing.py",
        "tests/stream/operators/test_program.py",
        "tests/stream/test_closing.py",
        "tests/stream/test_encode_samples.py",
        "tests/stream/test_equal_work.py",
        "tests/stream/test_hooks.py",
        "tests/stream/test_joins.py",
        "tests/stream/test_loader_stats.py",
        "tests/stream/test_mixtures.py",
        "tests/stream/test_passes.py",
        "tests/stream/test_planned_packing.py",
        "tests/stream/test_task_encoder_hooks.py",
        "tests/stream/test_watchdog.py",
        "tests/stream/test_which.py",
        "tests/stream/test_workers.py",
        "tests/test_extras.py",
        "tests/test_forms.py",
        "tests/test_kits.py",
        "tests/test_testing.py",
        "tests/test_tracebacks.py",
        "tests/torch/test_as_megatron_energon.py",
        "tests/torch/test_backends.py",
        "tests/torch/test_data_loader.py",
        "tests/torch/test_datasets.py",
        "tests/torch/test_graphs.py",
        "tests/torch/test_leaf_of.py",
        "tests/torch/test_planned_packing.py",
        "tests/torch/test_programs.py",
        "tests/torch/test_ranks.py",
        "tests/torch/test_tensors.py",
        "tests/torch/test_trainers.py",
        "tests/torch/test_workers_and_files.py",
        "tests/transforms/test_image.py",
        "tests/typed_programs/test_types.py",
    }
)

ALWAYS = re.compile(
    r"tests/(golden|samplers)/|state|checkpoint|restore|resum|cursor|secur|secret|credential|hostile|forged|untrusted"
    r"|fault|fuzz|machine|damag|hole|_cut|wrong|hash|refused|broken|corrupt|bad_|defect|limits|killed|failure"
)
"""Tests that each run takes, by words of their ids: golden streams, order, state, security, faults and fuzzing."""


def tree() -> str:
    """The hash of the commit's tree; of the files themselves where there is no git."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", "HEAD:./"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return _digest(
            path for folder in ("energon_grain", "adapters", "tests") for path in (ROOT / folder).rglob("*.py")
        )


def _digest(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def quarter(asked: str) -> int | None:
    """The number of the quarter to run, of `--slice`'s value; None: everything.

    Raises:
        ValueError: The value is none of `commit`, `all`, `0`, `1`, `2` and `3`.
    """
    if asked == "all":
        return None
    if asked == "commit":
        return int(tree()[:8], 16) % QUARTERS
    if asked in map(str, range(QUARTERS)):
        return int(asked)
    raise ValueError(f"--slice={asked}: expected commit, all, or a number from 0 to {QUARTERS - 1}")


def split(ids: Iterable[str], chosen: int) -> tuple[list[int], list[int]]:
    """The places of the tests that a quarter runs, and of those that it leaves to the other quarters."""
    seen: dict[str, int] = {}
    run: list[int] = []
    left: list[int] = []
    for place, name in enumerate(ids):
        module = name.partition("::")[0]
        if module in SLICED and not ALWAYS.search(name):
            number = seen[module] = seen.get(module, -1) + 1
            (run if number % QUARTERS == chosen else left).append(place)
        else:
            run.append(place)
    return run, left


if __name__ == "__main__":
    from durations import by_file

    slow = {name for name, seconds in by_file(sys.argv[1]).items() if seconds >= SLOW_S}
    print("slow, and not on the list:", *sorted(slow - SLICED), sep="\n  ")
    print("on the list, and not slow:", *sorted(SLICED - slow), sep="\n  ")
