"""Emulated accelerators that a loader feeds: `python -m benchmarks.dlio.run --workload resnet50 --loader torch`.

An accelerator is a rank of DLIO that sleeps for the time of a training step. A loader feeds n accelerators if DLIO's
accelerator utilisation of n ranks reaches the limit of the workload. `README.md` has the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOADERS: dict[str, list[str]] = {
    "torch": [],
    "energon-grain": [
        "++workload.reader.data_loader_classname=energon_grain_dlio.loader.EnergonGrainDataLoader",
        "++workload.reader.data_loader_sampler=index",
    ],
    "none": [
        "++workload.reader.data_loader_classname=energon_grain_dlio.none.NoDataLoader",
        "++workload.reader.data_loader_sampler=index",
    ],
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A workload of DLIO in small: fewer files, in a format that DLIO's PyTorch loader reads."""

    base: str  # DLIO's workload, whose times, batch size and utilisation are kept
    files: int
    bytes: int
    batch: int
    utilisation: float  # percent, from the workload
    steps: int  # at least, in all epochs together


WORKLOADS = {
    "resnet50": Workload(base="resnet50_h100", files=9600, bytes=114660, batch=400, utilisation=90.0, steps=200),
    "cosmoflow": Workload(base="cosmoflow_h100", files=480, bytes=2828486, batch=1, utilisation=70.0, steps=4800),
}


def overrides(name: str, folder: Path) -> list[str]:
    """Return the settings in which a workload differs from DLIO's."""
    workload = WORKLOADS[name]
    return [
        f"workload={workload.base}",
        "++workload.framework=pytorch",
        "++workload.reader.data_loader=pytorch",
        "++workload.dataset.format=npy",
        f"++workload.dataset.data_folder={folder / name}",
        f"++workload.dataset.num_files_train={workload.files}",
        "++workload.dataset.num_samples_per_file=1",
        f"++workload.dataset.record_length_bytes={workload.bytes}",
        "++workload.dataset.record_length_bytes_stdev=0",
        f"++workload.dataset.record_length_bytes_resize={workload.bytes}",
        "++workload.reader.file_shuffle=seed",
        "++workload.reader.sample_shuffle=seed",
    ]


def dlio(ranks: int, settings: list[str], program: str = "benchmarks.dlio.quiet") -> dict[str, Any]:
    """Run DLIO on ranks of this machine. Returns its summary, with the processor seconds of all ranks."""
    with tempfile.TemporaryDirectory(prefix="dlio-") as output:
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        command += ["--mca", "mpi_yield_when_idle", "1", "-n", str(ranks)]
        command += [sys.executable, "-m", program, *settings, f"hydra.run.dir={output}"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "DFTRACER_ENABLE": "0"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RuntimeError(f"DLIO failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        summaries = list(Path(output).rglob("summary.json"))
        summary: dict[str, Any] = json.loads(summaries[0].read_text()) if summaries else {}
    summary["processor_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return summary


def generate(name: str, folder: Path) -> None:
    """Write the files of a workload with DLIO, once."""
    done = folder / f"{name}.done"
    if not done.exists():
        dlio(1, [*overrides(name, folder), "++workload.workflow.generate_data=True", "++workload.workflow.train=False"])
        done.touch()


def measure(name: str, loader: str, ranks: int, threads: int, folder: Path, program: str) -> dict[str, float]:
    """Run a workload on emulated accelerators."""
    workload = WORKLOADS[name]
    steps = workload.files // (workload.batch * ranks)
    epochs = max(2, -(-workload.steps // steps))
    settings = [*overrides(name, folder), *LOADERS[loader], f"++workload.train.epochs={epochs}"]
    settings += [f"++workload.reader.read_threads={threads}", "++workload.workflow.generate_data=False"]
    summary = dlio(ranks, settings, program)
    metric = summary["metric"]
    return {
        "accelerators": ranks,
        "utilisation_percent": round(metric["train_au_mean_percentage"], 2),
        "samples_per_s": round(metric["train_throughput_mean_samples_per_second"], 1),
        "processor_ms_per_sample": round(1000 * summary["processor_s"] / (epochs * steps * workload.batch * ranks), 3),
    }


def main(arguments: list[str] | None = None) -> int:
    """Measure one loader on one workload, and print a line of JSON for each number of accelerators."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dlio.run", description="Emulated accelerators that a loader feeds."
    )
    parser.add_argument("--workload", choices=list(WORKLOADS), required=True)
    parser.add_argument("--loader", choices=list(LOADERS), required=True)
    parser.add_argument("--accelerators", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12])
    parser.add_argument("--threads", type=int, default=1, help="read_threads of each rank (default: 1)")
    parser.add_argument("--folder", type=Path, default=Path(".bench/dlio").absolute(), help="folder of the files")
    parser.add_argument("--unchanged", action="store_true", help="DLIO with its debug text of all files per sample")
    options = parser.parse_args(arguments)
    program = "dlio_benchmark.main" if options.unchanged else "benchmarks.dlio.quiet"
    options.folder.mkdir(parents=True, exist_ok=True)
    generate(options.workload, options.folder)
    for ranks in options.accelerators:
        values = measure(options.workload, options.loader, ranks, options.threads, options.folder, program)
        print(json.dumps({"workload": options.workload, "loader": options.loader, **values}), flush=True)
        if values["utilisation_percent"] < WORKLOADS[options.workload].utilisation:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
