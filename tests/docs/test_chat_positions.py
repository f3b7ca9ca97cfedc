"""The M-RoPE positions of the recipe for chats are those of `transformers`, computed without weights."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[2] / "examples" / "chat" / "mrope.py"
IMAGE, START, END = 1000, 1001, 1002
Grids = list[tuple[int, int, int]]


@pytest.fixture(scope="module")
def position_ids() -> Callable[..., np.ndarray]:
    function: Callable[..., np.ndarray] = runpy.run_path(str(FILE))["position_ids"]
    return function


def chats(merge: int) -> Iterator[tuple[list[int], Grids]]:
    """Chats with 0 to 3 images of random sizes, some at the very beginning or end."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        tokens, grids = list(rng.integers(1, 1000, rng.integers(0, 9))), []
        for _ in range(rng.integers(4)):
            height, width = (int(side) for side in merge * rng.integers(1, 9, 2))
            grids.append((1, height, width))
            tokens += [START, *[IMAGE] * (height * width // merge**2), END, *rng.integers(1, 1000, rng.integers(9))]
        if tokens:
            yield [int(token) for token in tokens], grids


@pytest.mark.parametrize("name", ["Qwen2VL", "Qwen2_5_VL"])
@pytest.mark.parametrize("merge", [1, 2, 4])
def test_positions_are_those_of_transformers(name: str, merge: int, position_ids: Callable[..., np.ndarray]) -> None:
    model = getattr(transformers, f"{name}Model")
    config = getattr(transformers, f"{name}Config")(vision_config={"spatial_merge_size": merge})
    bare = model.__new__(model)  # no weights: the function reads the configuration
    torch.nn.Module.__init__(bare)
    bare.config = config
    images = 0
    for tokens, grids in chats(merge):
        ids = torch.tensor([tokens])
        expected, _ = bare.get_rope_index(
            ids,
            mm_token_type_ids=(ids == IMAGE).int(),
            image_grid_thw=torch.tensor(grids) if grids else None,
        )
        images += len(grids)
        assert position_ids(tokens, grids, IMAGE, merge).tolist() == expected[:, 0].tolist()
    assert images > 20
