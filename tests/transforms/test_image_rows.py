"""Images that are decoded into the rows of one array, and stacked without copying."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
from hypothesis import given, settings as hypothesis_settings, strategies as st
from PIL import Image

from energon_grain import SampleDecoder, batch_pad_stack

ARRAY_MODES = ("l8", "rgb8", "rgba8", "l", "rgb", "rgba", "torchl8", "torchrgb8", "torchrgba8", "torchrgb", "torchl")


def encoded(seed: int, size: tuple[int, int], form: str, colour: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(colour).save(file, form)
    return file.getvalue()


@hypothesis_settings(max_examples=40)
@given(
    mode=st.sampled_from(ARRAY_MODES),
    kinds=st.lists(
        st.tuples(
            st.sampled_from([(8, 8), (8, 9), (16, 8)]), st.sampled_from(["JPEG", "PNG"]), st.sampled_from(["RGB", "L"])
        ),
        min_size=1,
        max_size=7,
    ),
    cuts=st.sets(st.integers(1, 6)),
)
def test_rows_equal_single_images(mode: str, kinds: list[tuple[tuple[int, int], str, str]], cuts: set[int]) -> None:
    column = [encoded(seed, *kind) for seed, kind in enumerate(kinds)]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(column)), len(column)]
    groups = [range(begin, end) for begin, end in pairwise(bounds)]
    decoder = SampleDecoder(image_decode=mode)  # type: ignore[arg-type]
    images = decoder.decode_column("jpg", column, groups)
    codec = decoder.decoder_for("jpg")
    assert codec is not None
    for image, data in zip(images, column, strict=True):
        expected = codec(data)
        assert image.dtype == expected.dtype
        assert np.array_equal(image, expected)


def test_a_whole_group_is_stacked_without_copying() -> None:
    column = [encoded(seed, (128, 96), "JPEG") for seed in range(6)]
    images = SampleDecoder(image_decode="rgb8").decode_column("jpg", column, [range(4), range(4, 6)])
    stacked = batch_pad_stack(images[:4])
    assert np.shares_memory(stacked, images[2])
    assert np.array_equal(stacked, np.stack(images[:4]))
    for part in (images[1:4], images[3:5], images[:3], [images[1], images[0], *images[2:4]], images[:4] * 2):
        copied = batch_pad_stack(part)
        assert not np.shares_memory(copied, images[0])
        assert np.array_equal(copied, np.stack(part))


def test_views_that_only_look_like_rows_are_copied() -> None:
    base = np.arange(4 * 64 * 64, dtype=np.float32).reshape(4, 64, 64)
    flipped = [row[::-1] for row in base]
    assert np.array_equal(batch_pad_stack(flipped), np.stack(flipped))
    base.flags.writeable = False
    rows = list(base)
    assert batch_pad_stack(rows).flags.writeable
