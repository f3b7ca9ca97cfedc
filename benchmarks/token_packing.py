"""Text to tokens to packs of 4,096: the same code for energon-grain and for Megatron-Energon. Only numpy."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.contents import prose

CAPACITY = 4096


@cache
def _vocabulary() -> dict[str, int]:
    return {word: number for number, word in enumerate(sorted(set(prose().decode().split())), 1)}


def prepare_vocabulary() -> None:
    """Count the words before a clock starts."""
    _vocabulary()


def tokenize(text: str) -> npt.NDArray[np.int32]:  # (words,)
    """Numbers of the words between white space; 0 for one that was cut off."""
    number = _vocabulary().get
    return np.array([number(word, 0) for word in text.split()], np.int32)


def greedy_packs(samples: list[Any]) -> list[list[Any]]:
    """Pack after pack, each with the longest samples that still fit."""
    left = sorted(samples, key=lambda sample: len(sample.tokens))
    sizes = [len(sample.tokens) for sample in left]
    packs: list[list[Any]] = []
    while left:
        pack: list[Any] = []
        room, end = CAPACITY, len(left)
        while end:
            pack.append(left.pop(end - 1))
            room -= sizes.pop(end - 1)
            end = bisect_right(sizes, room, 0, end - 1)
        packs.append(pack)
    return packs


def join(arrays: list[npt.NDArray[np.int32]]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Tokens one after the other, padded with zeros to `CAPACITY`; and the number of each one's sample, from 1 on."""
    tokens = np.zeros(CAPACITY, np.int32)
    segments = np.zeros(CAPACITY, np.int32)
    sizes = [len(array) for array in arrays]
    filled = sum(sizes)
    np.concatenate(arrays, out=tokens[:filled])
    segments[:filled] = np.repeat(np.arange(1, len(sizes) + 1, dtype=np.int32), sizes)
    return tokens, segments
