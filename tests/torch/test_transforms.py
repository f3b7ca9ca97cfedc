"""Merged transforms give what torchvision's give one after the other, and resample once."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
tv = pytest.importorskip("torchvision.transforms")
from PIL import Image  # noqa: E402

from energon_grain_torch.transforms import CustomTransform, MergeTransform  # noqa: E402

BILINEAR = tv.InterpolationMode.BILINEAR


def picture(width: int = 61, height: int = 47) -> Image.Image:
    x, y = np.meshgrid(np.linspace(40, 200, width), np.linspace(60, 250, height))
    return Image.fromarray(np.stack([x, y, (x + y) / 2], -1).astype(np.uint8))


ONE = {
    "resize": tv.Resize((90, 80)),
    "resize the short side": tv.Resize(90, max_size=120),
    "crop": tv.RandomCrop(40),
    "crop with padding": tv.RandomCrop((70, 80), padding=(3, 5), fill=7, pad_if_needed=True),
    "crop and resize": tv.RandomResizedCrop(64, scale=(0.5, 0.9)),
    "mirror": tv.RandomHorizontalFlip(0.5),
    "turn upside down": tv.RandomVerticalFlip(0.5),
    "rotate": tv.RandomRotation((20, 50), interpolation=BILINEAR),
    "rotate whole": tv.RandomRotation((20, 50), interpolation=BILINEAR, expand=True),
    "rotate about a corner": tv.RandomRotation((5, 20), interpolation=BILINEAR, center=(0, 0)),
    "perspective": tv.RandomPerspective(0.4, p=1, interpolation=BILINEAR),
    "centre": tv.CenterCrop((30, 90)),
}


@pytest.mark.parametrize("name", ONE)
@pytest.mark.parametrize("seed", [0, 1])
def test_one_alone_gives_what_it_gives_by_itself(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    merged = MergeTransform([ONE[name]])(picture())
    torch.manual_seed(seed)
    alone = ONE[name](picture())
    assert merged.size == alone.size
    ours, theirs = (np.asarray(image, np.int64) for image in (merged, alone))
    inside = (ours > 0).all(-1) & (theirs > 0).all(-1)  # at slanting edges single pixels are in or out
    assert inside.mean() > 0.9 * (theirs > 0).all(-1).mean()
    assert np.abs(ours - theirs)[inside].max() <= 4
    assert np.abs(ours - theirs)[inside].mean() < 1


@pytest.mark.parametrize("name", ["crop", "crop and resize", "rotate whole", "perspective"])
def test_tensors_are_transformed_like_pictures(name: str) -> None:
    merge = MergeTransform([tv.Resize((60, 70)), ONE[name]])
    torch.manual_seed(3)
    expected = np.asarray(merge(picture()), np.int64)
    tensor = torch.from_numpy(np.array(picture())).permute(2, 0, 1)
    for given, got_type in ((tensor, torch.uint8), (tensor.float(), torch.float32)):
        torch.manual_seed(3)
        made = merge(given)
        assert made.dtype is got_type
        got = made.permute(1, 2, 0).numpy().astype(np.int64)
        inside = (got > 30).all(-1) & (expected > 30).all(-1)
        assert got.shape == expected.shape
        assert np.abs(got - expected)[inside].mean() < 2


class Move(CustomTransform):
    def apply_transform(self, matrix, dst_size):  # type: ignore[no-untyped-def]
        return self.translate(5, 0) @ matrix, dst_size, ("Move", 5)


def test_transforms_of_ones_own_and_what_cannot_be_merged() -> None:
    image = picture()
    moved = MergeTransform([Move(), Move()])(image)
    assert np.array_equal(np.asarray(moved)[:, 10:], np.asarray(image)[:, :-10])
    with pytest.raises(ValueError, match="ColorJitter cannot be merged; expected Resize"):
        MergeTransform([tv.ColorJitter()])
    with pytest.raises(ValueError, match="the transforms have interpolation"):
        MergeTransform([tv.Resize(4, interpolation=tv.InterpolationMode.NEAREST), tv.RandomRotation(5, BILINEAR)])
    with pytest.raises(TypeError, match="not a list"):
        MergeTransform([])([])
