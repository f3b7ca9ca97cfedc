"""Clips of videos, and whole sounds, in batches: energon-grain, Megatron-Energon, webdataset and LitData.

    python -m benchmarks.media              # a table of both kinds
    python -m benchmarks.media --rounds 5

From each of 96 videos (10 s of 640 x 360 at 30 frames per second, H.264 with B-frames in groups of 60, with sound, 1.2
MB): a clip of one second, scaled to 160 x 90. From each of 192 sounds (10 s of stereo at 44.1 kHz, MP3): all samples.
One process, batches of 8, shuffled, endless. Energon runs the same program as energon-grain, word for word. webdataset
and LitData have no clips, so they use a hand-written loop over PyAV that seeks, decodes and scales, with minimal work.

Programs alternate, each in a separate process. The table shows processor seconds per sample for the best round of each,
which other programs on the machine affect less than wall-clock time, and samples per second of wall-clock time,
by the same round. The peers' interpreter (see README) needs PyAV: `pip install 'megatron-energon[av_decode]'`.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.child import ask, program
from benchmarks.machine import peer_python
from benchmarks.resources import CACHE
from benchmarks.steady import steady

CLIP_S, SIZE, BATCH = 1.0, (160, 90), 8
_COUNTS = {"video": 96, "sound": 192}
_PARTS = {"video": "mp4", "sound": "mp3"}


def of_energon(module: str, kind: str, folder: str, workers: int = 0, worker_type: str = "") -> Iterator[int]:
    """The program of energon-grain and of Energon; yields the number of samples of each batch."""
    library: Any = importlib.import_module(module)

    def cook(sample: dict[str, Any]) -> dict[str, Any]:
        decoder = sample[_PARTS[kind]]
        if kind == "video":
            start = sample["json"]["start"]
            (clip,), _ = decoder.get_video_clips([(start, start + CLIP_S)], "seconds", SIZE)
        else:
            clip = decoder.get_audio().audio_clips[0]
        return {**library.basic_sample_keys(sample), "clip": clip}

    class Encoder(library.DefaultTaskEncoder):
        cookers = (library.Cooker(library.stateless(cook)),)
        decoder = library.SampleDecoder(av_decode="AVDecoder")

        def batch(self, samples: list[Any]) -> Any:
            return samples

    dataset = library.get_train_dataset(
        folder,
        batch_size=BATCH,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=library.WorkerConfig(
            rank=0, world_size=1, num_workers=workers, **({"worker_type": worker_type} if worker_type else {})
        ),
        task_encoder=Encoder(),
    )
    return map(len, library.get_loader(dataset))


def bare(kind: str, data: bytes, start_s: float) -> Any:
    """The work of a custom program with PyAV."""
    import av
    import numpy as np

    with av.open(io.BytesIO(data), "r") as container:
        if kind == "sound":
            return np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        container.seek(int(start_s / stream.time_base), stream=stream)
        frames: list[Any] = []
        for frame in container.decode(stream):
            if frame.time > start_s + CLIP_S:
                break
            if frame.time >= start_s:
                frames.append(frame.reformat(*SIZE, "rgb24", interpolation="BILINEAR").to_ndarray())
        return np.stack(frames)


def of_webdataset(kind: str, folder: str) -> Iterator[int]:
    """webdataset's usual pipeline, with the loop over PyAV."""
    wds: Any = importlib.import_module("webdataset")
    urls = sorted(str(path) for path in Path(folder).glob("*.tar"))
    samples = wds.WebDataset(urls, shardshuffle=len(urls)).repeat().shuffle(100)
    decoded = samples.map(lambda sample: bare(kind, sample[_PARTS[kind]], json.loads(sample["json"])["start"]))
    return map(len, wds.WebLoader(decoded.batched(BATCH, collation_fn=list), batch_size=None, num_workers=0))


def of_litdata(kind: str, folder: str) -> Iterator[int]:
    """LitData's dataset and loader, with the loop over PyAV."""
    litdata: Any = importlib.import_module("litdata")

    class Media(litdata.StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return bare(kind, sample[_PARTS[kind]], json.loads(sample["json"])["start"])

    chunks = f"{folder}.litdata"
    if not Path(chunks).exists():
        importlib.import_module("benchmarks.peers.litdata").build(
            sorted(map(str, Path(folder).glob("*.tar"))), chunks, ""
        )
    loader = litdata.StreamingDataLoader(Media(chunks, shuffle=True), batch_size=BATCH, num_workers=0, collate_fn=list)
    return (len(batch) for _ in itertools.count() for batch in loader)


PROGRAMS: dict[str, Callable[[str, str], Iterator[int]]] = {
    "energon-grain": lambda kind, folder: of_energon("energon_grain_torch", kind, folder),
    "energon": lambda kind, folder: of_energon("megatron.energon", kind, folder),
    "webdataset": of_webdataset,
    "litdata": of_litdata,
}


def rates(name: str, kind: str, folder: str) -> dict[str, float]:
    """Return processor seconds per sample, and samples per second."""
    found = steady(lambda: PROGRAMS[name](kind, folder), lambda count: (count, 0), warmup_s=2, seconds=8)
    return {"cpu_s": 1 / found["samples_per_cpu_s"], "rate": found["samples_per_s"]}


def film(number: int, path: Path) -> None:
    """Write a video with sound: a moving texture, different in each video."""
    import av
    import numpy as np

    noise = np.random.default_rng(number).integers(0, 90, (720, 1280, 1), np.uint8)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=30, options={"preset": "veryfast", "crf": "30"})
        stream.width, stream.height, stream.pix_fmt, stream.codec_context.gop_size = 640, 360, "yuv420p", 60
        for place in range(300):
            shown = np.repeat(noise[place : place + 360, 2 * place : 2 * place + 640], 3, axis=2)
            frame = av.VideoFrame.from_ndarray(shown, "rgb24")
            frame.pts, frame.time_base = place, Fraction(1, 30)
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


def song(number: int, path: Path) -> None:
    """Write a sound: a rising tone, different in each sound."""
    import av
    import numpy as np

    at = np.arange(441_000) / 44_100
    wave = np.stack([np.sin((200 + 9 * number + 40 * at) * at * shift) for shift in (1, 1.01)]).astype(np.float32) / 2
    with av.open(str(path), "w", format="mp3") as out:
        stream = out.add_stream("libmp3lame", rate=44_100, layout="stereo")
        for begin in range(0, wave.shape[1], 1152):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave[:, begin : begin + 1152]), "fltp", "stereo")
            frame.sample_rate, frame.pts = 44_100, begin
            out.mux(stream.encode(frame))
        out.mux(stream.encode())


def made_dataset(cache: Path, kind: str) -> Path:
    """Return the dataset, made on first use: eight files of a kind, repeated under other keys."""
    from energon_grain.prepare import prepare_dataset
    from energon_grain.testing import write_tars

    root = cache / f"media-{kind}"
    if not (root / ".nv-meta").exists():
        make, part = {"video": film, "sound": song}[kind], _PARTS[kind]
        files: list[bytes] = []
        with tempfile.TemporaryDirectory() as temporary:
            for number in range(8):
                make(number, path := Path(temporary) / f"file.{part}")
                files.append(path.read_bytes())
        samples = (
            {"__key__": f"{n:04d}", part: files[n % 8], "json": {"start": 0.7 + 8 * math.modf(0.618 * n)[0]}}
            for n in range(_COUNTS[kind])
        )
        write_tars(root, samples, shards=4)
        prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0)
    return root


def main(rounds: int = 3, cache: Path = CACHE) -> None:
    peers = peer_python()
    others = {} if peers is None else dict.fromkeys([*PROGRAMS][1:], str(peers))
    programs = {"energon-grain": sys.executable, **others}
    print("| kind | program | processor ms/sample | ratio to energon-grain | samples/s |")
    for kind in _COUNTS:
        folder = str(made_dataset(cache, kind))
        best: dict[str, dict[str, float]] = {}
        for _ in range(rounds):
            for name, python in programs.items():
                found = ask("media", "rates", python=python, name=name, kind=kind, folder=folder)
                before = best.setdefault(name, found)
                cpu_s, rate = min(before["cpu_s"], found["cpu_s"]), max(before["rate"], found["rate"])
                best[name] = {"cpu_s": cpu_s, "rate": rate}
        for name, of in best.items():
            ratio = of["cpu_s"] / best["energon-grain"]["cpu_s"]
            print(f"| {kind} | {name} | {1000 * of['cpu_s']:.1f} | {ratio:.2f} x | {of['rate']:.0f} |", flush=True)


if __name__ == "__main__":
    program(main, rates=rates)
