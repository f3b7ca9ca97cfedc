"""Arguments of Energon's loaders without effect: known ones pass, others are mistakes."""

from __future__ import annotations

import pytest
from stream_hosts import MakeDataset

from energon_grain import get_loader, get_train_dataset


def test_known_ones_pass_and_others_do_not(text_dataset: MakeDataset) -> None:
    dataset = get_train_dataset(text_dataset(20), batch_size=2, shuffle_buffer_size=None, max_samples_per_sequence=None)
    with get_loader(dataset, checkpoint_every_sec=60, n_checkpoints=3, watchdog_timeout_seconds=None) as loader:
        assert len(next(loader).__key__) == 2
    with pytest.raises(TypeError, match="unexpected keyword argument 'checkpoint_every'"):
        get_loader(dataset, checkpoint_every=60)
