"""What the adapter imports and names."""

from __future__ import annotations

import energon_grain
import energon_grain_torch


def test_all_names_of_the_core_and_more() -> None:
    names = energon_grain_torch.__all__
    assert names == sorted(set(names))
    assert set(names) > set(energon_grain.__all__)
    assert [name for name in names if getattr(energon_grain_torch, name) is None] == []
    assert set(names) <= set(dir(energon_grain_torch))


def test_the_adapter_s_own_names_take_the_place_of_the_core_s() -> None:
    shared = energon_grain.__all__
    own = {name for name in shared if getattr(energon_grain_torch, name) is not getattr(energon_grain, name)}
    assert own == {
        *("AVDecoder", "AVWebdatasetDecoder", "AugmentTaskEncoder", "DefaultTaskEncoder", "SampleDecoder"),
        *("SavableDataLoader", "TaskEncoder", "WorkerConfig", "get_dataset_from_config", "get_loader"),
        *("get_savable_loader", "get_train_dataset", "get_val_dataset", "get_val_datasets"),
    }
