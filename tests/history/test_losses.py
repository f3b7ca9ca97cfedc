"""Losses as trainers and trackers write them."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from energon_grain.errors import ConfigError
from energon_grain.history.losses import Losses, read_losses

STEPS, VALUES = [0, 1, 2, 5], [3.5, 3.25, 3.0, 2.5]


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def rows(text: str) -> str:
    return "".join(text.format(step=step, loss=loss) for step, loss in zip(STEPS, VALUES, strict=True))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.csv", "step,loss\n" + rows("{step},{loss}\n")),
        ("tabs.tsv", "step\tloss\n" + rows("{step}\t{loss}\n")),
        # `run.history().to_csv()` of W&B
        ("wandb.csv", ",_step,_runtime,_timestamp,train/loss,lr\n" + rows("0,{step},1.5,1e9,{loss},0.1\n")),
        # the export button of a chart of W&B
        (
            "chart.csv",
            '"Step","neat-sun-3 - train/loss","neat-sun-3 - train/loss__MIN","neat-sun-3 - train/loss__MAX"\n'
            + rows('"{step}","{loss}","{loss}","{loss}"\n'),
        ),
        # `CSVLogger` of Lightning: each row has the metrics of one call
        ("metrics.csv", "epoch,step,train_loss,val_loss\n" + rows("0,{step},{loss},\n0,{step},,9.0\n")),
        ("lines.jsonl", rows('{{"step": {step}, "loss": {loss}}}\n') + '{"step": 2, "accuracy": 0.5}\n'),
        # `scan_history` of W&B, with the steps of a trainer that logs several times in each
        ("scan.jsonl", rows('{{"_step": 77, "train/global_step": {step}, "train/loss": {loss}}}\n')),
        ("list.json", "[" + rows('{{"step": {step}, "loss": {loss}}},').rstrip(",") + "]"),
        # Hugging Face
        (
            "trainer_state.json",
            '{"best_metric": null, "log_history": ['
            + rows('{{"epoch": 0.1, "loss": {loss}, "step": {step}}},')
            + '{"eval_loss": 1.0, "step": 3}]}',
        ),
    ],
)
def test_every_form_has_the_same_losses(tmp_path: Path, name: str, text: str) -> None:
    losses = read_losses(written(tmp_path, name, text))
    assert losses.steps.tolist() == STEPS
    assert losses.values.tolist() == VALUES
    assert losses.samples is None
    assert losses.repeated == 0


def test_the_last_value_of_a_step_counts_and_not_finite_ones_stay(tmp_path: Path) -> None:
    text = "step,loss\n4,1.0\n3,nan\n1,2.0\n4,inf\n2,NaN\n0,\n"
    losses = read_losses(written(tmp_path, "restarted.csv", text))
    assert losses.steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_equal(losses.values, [2.0, math.nan, math.nan, math.inf])
    assert losses.repeated == 1


def test_losses_of_samples_and_of_datasets(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "loss": [1.0, 3.0], "loss/web": 1.5},
        {"step": 1, "loss": [2.0, 4.0, 6.0], "loss/code": 2.5},
        {"step": 2, "loss": [0.0]},
    ]
    text = "\n".join(map(json.dumps, lines))
    losses = read_losses(written(tmp_path, "samples.jsonl", text))
    assert losses.values.tolist() == [2.0, 4.0, 0.0]
    assert losses.samples is not None
    assert [each.tolist() for each in losses.samples] == [[1.0, 3.0], [2.0, 4.0, 6.0], [0.0]]
    assert losses.parts.keys() == {"web", "code"}
    np.testing.assert_equal(losses.parts["web"], [1.5, math.nan, math.nan])
    in_cells = read_losses(written(tmp_path, "samples.csv", 'step,loss\n0,"[1.0, 3.0]"\n1,"[2.5]"\n'))
    assert in_cells.values.tolist() == [2.0, 2.5]


def test_a_mapping_is_losses_too() -> None:
    losses = Losses.of({3: 1.0, 1: [2.0, 4.0]} | {3: [1.0]})
    assert (losses.steps.tolist(), losses.values.tolist()) == ([1, 3], [3.0, 1.0])
    assert Losses.of(losses) is losses
    with pytest.raises(ConfigError, match=r"mapping of step to loss, got a list: write dict\(enumerate\(losses\)\)"):
        Losses.of([1.0, 2.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("step,loss\n", "it is empty"),
        ("step,accuracy\n1,2\n", "no column for the loss; there are 'step', 'accuracy': name it with --column"),
        ("time,loss\n1,2\n", "no column for the step; .*: name it with --step-column"),
        ("step,a_loss,b_loss\n1,2,3\n", "several columns could be the loss \\('a_loss', 'b_loss'\\)"),
        ("step,loss\n1.5,2\n", "step is '1.5': expected the number of a step, 0 or more"),
        ("step,loss\n-1,2\n", "step is '-1': expected the number of a step"),
        ("step,loss\n1,much\n", "loss of step 1 is 'much': expected a number"),
        ('step,loss\n1,"[1, a]"\n', "loss of step 1 is not a list of numbers"),
        ('step,loss\n1,"[[1], [2]]"\n', "loss of step 1 has the shape \\(2, 1\\): expected one loss per item"),
        ('step,loss\n1,"[1]"\n2,3\n', "has lists for some steps and numbers for others"),
        ('{"step": 1, "loss": 2}\n{"step": 2,\n', "line 2: is not JSON"),
        ('{"step": 1, "loss": 2}\n[1, 2]\n', "line 2: expected an object with step and loss"),
        ("[1, 2]", "expected a JSON object with step and loss for each line, or a list"),
        ('{"step": 1, "accuracy": 2, "loss": null}', "no row has both 'step' and 'loss'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_losses(written(tmp_path, "losses.txt", text))


def test_columns_are_named(tmp_path: Path) -> None:
    file = written(tmp_path, "two.csv", "at,step,a_loss,b_loss\n7,1,2,3\n")
    losses = read_losses(file, column="b_loss", step_column="at")
    assert (losses.steps.tolist(), losses.values.tolist(), losses.column) == ([7], [3.0], "b_loss")
    with pytest.raises(ConfigError, match="there is no column 'c'; there are 'at', 'step', 'a_loss', 'b_loss'"):
        read_losses(file, column="c")
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        read_losses(tmp_path / "gone.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match=r"cannot be read as text .*: expected CSV, JSON lines, or TensorBoard"):
        read_losses(tmp_path / "binary.csv")


def field(number: int, value: float | int | bytes, form: str = "") -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, bytes):
        return bytes([number << 3 | 2]) + varint(len(value)) + value
    if form:
        return bytes([number << 3 | (5 if form == "f" else 1)]) + struct.pack(f"<{form}", value)
    assert isinstance(value, int)
    return bytes([number << 3]) + varint(value)


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def event(step: int, **scalars: bytes) -> bytes:
    """A record of an event file, with zeros for checksums."""
    values = b"".join(field(1, field(1, tag.encode()) + value) for tag, value in scalars.items())
    data = field(1, 1e9, "d") + field(2, step) + field(5, values)
    return struct.pack("<QI", len(data), 0) + data + bytes(4)


def simple(value: float) -> bytes:
    return field(2, value, "f")


def as_tensor(value: float, form: str) -> bytes:
    """A scalar as `tf.summary` of TensorFlow 2 writes it."""
    return field(8, field(1, 1 if form == "f" else 2) + field(4, struct.pack(f"<{form}", value)))


def test_event_files_of_tensorboard(tmp_path: Path) -> None:
    version = field(1, 1e9, "d") + field(3, b"brain.Event:2")
    begin = struct.pack("<QI", len(version), 0) + version + bytes(4)
    first = begin + event(0, loss=simple(3.5), lr=simple(0.1)) + event(300, loss=as_tensor(3.25, "f"))
    (tmp_path / "events.out.tfevents.1.host.1.0").write_bytes(first + event(301, loss=simple(9))[:-6])
    second = event(300, **{"loss": as_tensor(3.0, "d"), "loss/web": simple(1.5), "text": field(8, field(1, 7))})
    (tmp_path / "events.out.tfevents.2.host.1.0").write_bytes(begin + second)
    losses = read_losses(tmp_path)
    assert (losses.steps.tolist(), losses.values.tolist(), losses.repeated) == ([0, 300], [3.5, 3.0], 1)
    np.testing.assert_equal(losses.parts["web"], [math.nan, 1.5])
    assert read_losses(tmp_path, column="lr").values.tolist() == [pytest.approx(0.1)]
    assert read_losses(tmp_path / "events.out.tfevents.1.host.1.0").values.tolist() == [3.5, 3.25]


def test_event_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder has no event file of TensorBoard"):
        read_losses(tmp_path)
    file = tmp_path / "a.tfevents"
    file.write_bytes(b"step,loss\n1,2.0\n3,4.0\n")
    with pytest.raises(ConfigError, match="is not an event file of TensorBoard"):
        read_losses(file)
    broken = b"\x2a\x7f"
    file.write_bytes(struct.pack("<QI", len(broken), 0) + broken + bytes(4))
    with pytest.raises(ConfigError, match="record 0 is not an event of TensorBoard"):
        read_losses(file)
    for run in ("one", "two"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "a.tfevents").write_bytes(event(1, loss=simple(1)))
    file.unlink()
    with pytest.raises(ConfigError, match=r"several runs have 'loss' .*: give the folder of one"):
        read_losses(tmp_path)
