"""How often in a row each hook of a task encoder may fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logging_encoders import Groups, Logs, Packs, cook, train
from small_graphs import take

from energon_grain import Cooker, CrudeSample, FatalSampleError, Stream, TaskEncoder, stateless
from energon_grain.testing import make_crude_dataset


@pytest.fixture(scope="module")
def crude(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_crude_dataset(tmp_path_factory.mktemp("hooks") / "crude", n=24, shards=1)


OF_PACKS = ["preencode_sample", "select_samples_to_pack", "postencode_sample", "pack_selected_samples"]
OF_BATCHES = ["batch", "encode_batch"]
HOOKS = ["cook_crude_sample", "encode_sample", *OF_PACKS, "batch_group_criterion", *OF_BATCHES]


def failing(
    hook: str, *, restore_seeds: bool, failure_tolerance: int | None, fails: Callable[[int], bool]
) -> TaskEncoder:
    """An encoder whose hook fails in those of its calls."""
    base = Packs if hook in OF_PACKS else Logs if hook in OF_BATCHES else Groups
    calls: list[int] = []
    plain = getattr(base, hook)

    @stateless(restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)
    def refusing(self: Any, *arguments: Any) -> Any:
        calls.append(len(calls))
        if fails(calls[-1]):
            raise ValueError("bad")
        return plain(self, *arguments)

    namespace: dict[str, Any] = {hook: refusing}
    if hook == "cook_crude_sample":
        # What is declared of cooking is declared of the cooker.
        @stateless(restore_seeds=restore_seeds, failure_tolerance=failure_tolerance)
        def cooker(sample: CrudeSample) -> Any:
            calls.append(len(calls))
            if fails(calls[-1]):
                raise ValueError("bad")
            return cook(sample)

        namespace = {"cookers": (Cooker(cooker),)}
    return type("Failing", (base,), namespace)()


@pytest.mark.parametrize("restore_seeds", [False, True])
@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_has_its_own_budget(crude: Path, hook: str, restore_seeds: bool) -> None:
    """W-11: in the original the tolerance is forgotten together with `restore_seeds`."""

    def run(failure_tolerance: int | None, fails: Callable[[int], bool], steps: int) -> Stream:
        encoder = failing(hook, restore_seeds=restore_seeds, failure_tolerance=failure_tolerance, fails=fails)
        packing = 4 if isinstance(encoder, Packs) else None
        stream = Stream.of(train(crude, encoder, packing_buffer_size=packing, repeat=True))
        take(stream, steps)
        return stream

    with pytest.raises(FatalSampleError, match=f"{hook} failed 3 times in a row"):
        run(3, lambda call: True, 1)
    with pytest.raises(FatalSampleError, match=f"{hook} failed 100 times in a row"):
        run(None, lambda call: True, 1)
    # Successes between failures make them no longer in a row.
    stream = run(3, lambda call: call % 3 > 0, 30)
    assert stream.stats()["dropped_total"] >= 20
    stream = run(0, lambda call: call % 150 > 0, 3)
    assert stream.stats()["dropped_total"] >= 149
