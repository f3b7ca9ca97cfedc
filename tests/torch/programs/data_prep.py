"""Prepare a folder of tars by a program."""

import shutil
from pathlib import Path

import energon_grain_torch as energon


def prepare(path, template_folder, workers):
    if (path / ".nv-meta" / "dataset.yaml").exists():
        return None
    tars = sorted(str(tar.relative_to(path)) for tar in path.glob("**/*.tar"))
    progress = []

    def show_progress(elements, length=None):
        for element in elements:
            progress.append(length)
            yield element

    parts = energon.BaseWebdatasetFactory.prepare_dataset(
        path,
        tars,
        split_parts_ratio=[("train", 1), ("val", 0), ("test", 0)],
        split_parts_patterns=None,
        progress_fn=show_progress,
        tar_index_only=False,
        shuffle_seed=None,
        workers=workers,
    )
    for file in template_folder.glob("*"):
        shutil.copy(file, path / ".nv-meta" / file.name)
    return parts, progress


templates = Path("templates")
templates.mkdir()
(templates / "dataset.yaml").write_text(
    "sample_type: {__module__: megatron.energon, __class__: TextSample}\nfield_map: {text: txt}\n"
)

parts, progress = prepare(Path("bare"), templates, workers=2)
assert parts == {"txt", "json"}
assert progress == [3, 3, 3]
assert prepare(Path("bare"), templates, workers=2) is None

dataset = energon.get_val_dataset(
    "bare",
    split_part="train",
    batch_size=None,
    worker_config=energon.WorkerConfig.default_worker_config(num_workers=0),
)
assert sum(1 for _ in energon.get_loader(dataset)) == 12
