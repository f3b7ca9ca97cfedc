"""Damaged media, by the thousand: `python tests/media_fuzzing.py KIND SEED COUNT`, of videos, sounds, images, headers.

Every request must give something or raise `DecodingError`, soon, and in bounded memory. Prints how many did which; a
process that crashes, or is stopped by its bound of memory, ends with another status than 0, and says the number of the
file, which seed and number make again.
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
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from media_files import FILMS, SOUNDS, encode_sound
from media_kinds import PICTURES, SOUNDS as VOICES, VIDEOS

from energon_grain import AVDecoder, DecodingError, SampleDecoder
from energon_grain.media.headers import HEADER_BYTES, read_header
from energon_grain.prepare import MediaFilterConfig

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
DECODERS = [
    SampleDecoder(image_decode=mode, image_size=size, max_pixels=1 << 22)
    for mode, size in (
        ("rgb8", None),
        ("torchrgb", None),
        ("l8", None),
        ("pilrgba", None),
        ("rgb8", 16),
        ("l8", (9, 50)),
    )
]
FILTERS = [MediaFilterConfig.parse(None, by_header, not by_header) for by_header in (True, False)]

Files = list[tuple[str, bytes]]
Ask = Callable[[str, bytes, random.Random], Any]


def films() -> Files:
    """Videos of twelve frames in every container, by name."""
    short = {
        name: replace(film, frames=12, group=4, times=film.times and film.times[:12]) for name, film in FILMS.items()
    }
    return [(name, film.encode()) for name, film in short.items()]


def songs() -> Files:
    """Sounds of every codec, by name."""
    return [(name, encode_sound(*each, count=6000)) for name, each in SOUNDS.items()]


def pictures() -> Files:
    """Images of every kind, by name."""
    return [(name, make()) for name, make in PICTURES.items()]


def every_kind() -> Files:
    """Images, videos and sounds, with endings that say what they are."""
    return [*pictures(), *((name, make()) for name, make in (VIDEOS | VOICES).items())]


def ask_decoder(name: str, data: bytes, choose: random.Random) -> Any:
    """What an `AVDecoder` gives of a file."""
    del name
    decoder = AVDecoder(io.BytesIO(data), max_pixels=1 << 20, max_part_bytes=1 << 24, threads=choose.choice((1, 1, 3)))
    return choose.choice(REQUESTS)(decoder)


def ask_pixels(name: str, data: bytes, choose: random.Random) -> Any:
    """What an image becomes."""
    return choose.choice(DECODERS).decode(f"key.{name}", data)


def ask_header(name: str, data: bytes, choose: random.Random) -> Any:
    """What the header of a file says."""
    return read_header(
        data[:HEADER_BYTES], len(data), lambda at, count: data[at : at + count], name, choose.choice(FILTERS)
    )


KINDS: dict[str, tuple[Callable[[], Files], Ask]] = {
    "videos": (films, ask_decoder),
    "sounds": (songs, ask_decoder),
    "images": (pictures, ask_pixels),
    "headers": (every_kind, ask_header),
}


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


def main(kind: str, seed: int, count: int) -> None:
    """Ask for damaged files."""
    faulthandler.enable()
    warnings.simplefilter("ignore")  # Pillow's, of what it repairs
    make, ask = KINDS[kind]
    files = make()
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, now + MOST_BYTES))
    found: collections.Counter[str] = collections.Counter()
    slow: list[float] = []
    for number in range(count):
        choose = random.Random(f"{kind} {seed} {number}")
        name, whole = choose.choice(files)
        data = mutated(whole, choose)
        begin = time.process_time()  # the machine may be busy
        try:
            ask(name, data, choose)
            found["decoded"] += 1
        except DecodingError:
            found["refused"] += 1
        except BaseException as error:
            error.add_note(f"{kind}, seed {seed}, number {number}: {name}")
            raise
        if (duration := time.process_time() - begin) > SLOW_S:
            slow.append(duration)
    print(json.dumps({**found, "slow": slow}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
