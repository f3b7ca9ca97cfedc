"""Damaged videos and sounds, by the thousand: `python tests/media_fuzzing.py SEED COUNT`.

Every request must give something or raise `DecodingError`, soon, and in bounded memory. Prints how many did which; a
process that crashes, or is stopped by its bound of memory, ends with another status than 0.
"""

from __future__ import annotations

import collections
import faulthandler
import io
import json
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from media_files import FILMS, SOUNDS, encode_sound

from energon_grain import AVDecoder, DecodingError

MOST_BYTES = 1 << 30
"""That a process may ask for on top of what it has when it begins."""
SLOW_S = 20.0
NUMBERS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0", b"\xff\xff", b"\0\0\0\1")

REQUESTS: tuple[Callable[[AVDecoder], Any], ...] = (
    lambda decoder: decoder.get_frames(video_decode_audio=True),
    lambda decoder: decoder.get_metadata(get_audio_num_samples=True),
    lambda decoder: decoder.get_video_clips([(0.1, 0.2), (0.3, 9)]),
    lambda decoder: decoder.get_video_clips([(7, 9)], "frames"),
    lambda decoder: decoder.get_audio_clips([(0.01, 0.02), (0.1, 9)], audio_sample_rate=8000),
)


def mutated(data: bytes, random: random.Random) -> bytes:
    """The file cut, with a piece missing, or with some bytes changed: in its header, near its end, anywhere."""
    kind = random.random()
    if kind < 0.15:
        return data[: random.randrange(len(data))]
    if kind < 0.25:
        first, last = (random.randrange(len(data)) for _ in range(2))
        return data[:first] + data[last:]
    changed = bytearray(data)
    reach = min(len(data), random.choice((64, 600, 2500, len(data))))
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        place = random.randrange(reach) if random.random() < 0.7 else len(data) - 1 - random.randrange(reach)
        value = random.choice(
            (*NUMBERS, bytes([random.randrange(256)]), bytes([changed[place] ^ 1 << random.randrange(8)]))
        )
        changed[place : place + len(value)] = value
    return bytes(changed)


def main(seed: int, count: int) -> None:
    """Decode damaged files."""
    faulthandler.enable()
    choose = random.Random(seed)
    files = [
        replace(film, frames=12, group=4, times=film.times and film.times[:12]).encode() for film in FILMS.values()
    ]
    files += [encode_sound(*sound, count=6000) for sound in SOUNDS.values()]
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, now + MOST_BYTES))
    found: collections.Counter[str] = collections.Counter()
    slow: list[float] = []
    for _ in range(count):
        data = mutated(choose.choice(files), choose)
        begin = time.process_time()  # the machine may be busy
        try:
            choose.choice(REQUESTS)(AVDecoder(io.BytesIO(data), max_pixels=1 << 20, max_part_bytes=1 << 24))
            found["decoded"] += 1
        except DecodingError:
            found["refused"] += 1
        if (duration := time.process_time() - begin) > SLOW_S:
            slow.append(duration)
    print(json.dumps({**found, "slow": slow}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
