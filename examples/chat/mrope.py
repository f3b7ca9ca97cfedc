"""M-RoPE position ids of Qwen2-VL and Qwen2.5-VL for chats with images, in NumPy: copy it beside your encoder."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


def position_ids(
    tokens: Sequence[int], grids: Iterable[tuple[int, int, int]], image_token: int, merge: int = 2
) -> npt.NDArray[np.int64]:
    """The time, height and width position of each token, in the shape (3, tokens).

    A text token has one number in all three rows. The tokens of an image have the coordinates of its grid, added to the
    next number; the text after it continues at the larger of height and width. `transformers` computes the same in
    `Qwen2VLModel.get_rope_index`.

    Args:
        tokens: The tokens of one chat, with one image token per merged patch.
        grids: Time, height and width in patches, for each image in order: `image_grid_thw` of the processor.
        image_token: `image_token_id` of the model's configuration.
        merge: `spatial_merge_size` of the vision configuration.
    """
    ids, at, start = np.zeros((3, len(tokens)), np.int64), 0, 0
    grids = iter(grids)
    while at < len(tokens):
        shape = (1, 1, 1)
        if tokens[at] == image_token:
            time, height, width = next(grids)
            shape = (time, height // merge, width // merge)
        places = np.indices(shape).reshape(3, -1)
        ids[:, at : at + places.shape[1]] = start + places
        at, start = at + places.shape[1], start + max(shape[1:])
    return ids
