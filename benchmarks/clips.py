"""Clips of two seconds from videos of ten minutes: bytes read, and time.

    python -m benchmarks.clips                    # all files, on disk and in a bucket
    python -m benchmarks.clips mp4 mkv --clips 3
    python -m benchmarks.clips --indexed          # after `index_videos`
    python -m benchmarks.clips mp4 --from-start 60  # and a clip there, decoding all earlier frames

One 1080p video with sound (H.264, groups of 120 pictures with B-frames, 6 Mbit/s; AAC) in every container. Each is a
sample of 450 MB in one tar. Shapes move under camera grain, so pictures between keyframes use a realistic share of the
bits. "needed" is the number of bytes in the groups of pictures that a clip touches, with everything between them, and
the header: everything before the first group, and the index if it is at the end. The bucket is a real S3 server on
loopback; every answer takes 20 ms, all answers share a link (`--link`, megabytes per second), and nothing is cached
between clips.

Seconds are wall-clock time, and, if marked, processor time of this process. The floor is a lower limit for delivering
these frames: a loop over PyAV that decodes a file in memory from the keyframe to the end of the clip, every picture,
and scales those of the clip.
"""

from __future__ import annotations

import io
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import av
import numpy as np
import typer

from benchmarks.child import program
from benchmarks.object_store import BUCKET, bucket_of, server_here
from benchmarks.resources import CACHE, warm
from energon_grain import AVDecoder, SampleDecoder, WebdatasetFileStore
from energon_grain.cooking.aux_stores import DecodeFileStore
from energon_grain.formats.local_files import LocalFiles
from energon_grain.formats.seek_table import SEEK_TABLE
from energon_grain.prepare import index_videos, prepare_dataset
from energon_grain.storage.settings import StorageSettings, use_storage
from energon_grain.testing import write_tars

SECONDS, CLIP_S = 600, 2.0
_FPS, _GROUP, _PIECE_FRAMES, _RATE, _BITS_S = 30, 120, 600, 48_000, 6_000_000
_LATENCY_S = 0.02

CONTAINERS: dict[str, tuple[str, dict[str, str]]] = {
    "mp4": ("mp4", {"movflags": "faststart"}),
    "mp4-index-at-end": ("mp4", {}),
    "mkv": ("matroska", {}),
    "mp4-fragments-sidx": ("mp4", {"movflags": "frag_keyframe+empty_moov+default_base_moof+global_sidx"}),
    "mp4-fragments-mfra": ("mp4", {"movflags": "frag_keyframe+empty_moov+default_base_moof"}),
    "mp4-fragments": ("mp4", {"movflags": "frag_keyframe+empty_moov+default_base_moof+skip_trailer"}),
    "mkv-live": ("matroska", {"live": "1"}),
}
"""libav's format and options by sample name."""
NAMES = {key: f"{key}.{key[:3]}" for key in CONTAINERS}


def encode(path: Path) -> None:
    """Encode a piece of the video, with sound."""
    chance = np.random.default_rng(0)
    shapes = chance.integers(30, 220, (135, 240, 3), np.uint8).repeat(16, axis=0).repeat(16, axis=1)
    grain = chance.integers(0, 12, (1080 * 2, 1920 * 2, 1), np.uint8)
    with av.open(path, "w") as out:
        video = out.add_stream("libx264", rate=_FPS, options={"preset": "veryfast"})
        video.width, video.height, video.pix_fmt = 1920, 1080, "yuv420p"
        video.codec_context.gop_size, video.bit_rate = _GROUP, _BITS_S
        sound = out.add_stream("aac", rate=_RATE, layout="mono")
        for number in range(_PIECE_FRAMES):
            x, y = chance.integers(0, (1920, 1080)).tolist()  # different grain in every picture, as in film and sensors
            left, top = number % 240, number % 1080
            picture = shapes[top : top + 1080, left : left + 1920] + grain[y : y + 1080, x : x + 1920]
            frame = av.VideoFrame.from_ndarray(picture, "rgb24")
            frame.pts, frame.time_base = number, Fraction(1, _FPS)
            out.mux(video.encode(frame))
            wave = np.sin(np.arange(_RATE // _FPS) * 0.05)[None].astype(np.float32)
            tone = av.AudioFrame.from_ndarray(wave, "fltp", "mono")
            tone.sample_rate, tone.pts = _RATE, number * (_RATE // _FPS)
            out.mux(sound.encode(tone))
        out.mux(video.encode())
        out.mux(sound.encode())


def remux(piece: Path, container: str, path: Path) -> None:
    """Write the repeated piece in another container."""
    kind, options = CONTAINERS[container]
    with av.open(path, "w", format=kind, options=options) as out:
        with av.open(piece) as source:
            made = {each.index: out.add_stream_from_template(each) for each in source.streams}
        last = dict.fromkeys(made, -(1 << 62))
        for turn in range(SECONDS * _FPS // _PIECE_FRAMES):
            with av.open(piece) as source:
                for packet in source.demux():
                    if packet.dts is None:
                        continue
                    shift = round(Fraction(turn * _PIECE_FRAMES, _FPS) / packet.time_base)
                    packet.pts, packet.dts = (packet.pts or 0) + shift, packet.dts + shift
                    if packet.dts <= last[packet.stream.index]:
                        continue  # sound packets at the joint of two pieces
                    last[packet.stream.index] = packet.dts
                    packet.stream = made[packet.stream.index]
                    out.mux(packet)


def made_dataset(cache: Path) -> Path:
    """Return the tar, made on first use."""
    root = cache / "clips-6-mbit"
    if not (root / ".nv-meta").exists():
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            piece = Path(temporary) / "piece.mp4"
            encode(piece)
            samples = []
            for name in CONTAINERS:
                remux(piece, name, file := Path(temporary) / name)
                samples.append({"__key__": name, name[:3]: file.read_bytes()})
                file.unlink()
            write_tars(root, samples)
        prepare_dataset(root, split_ratio={"train": 1}, crude=True, num_workers=0)
    return root


def decode_clip(file: BinaryIO, start_s: float) -> int:
    """Decode the frames of a clip and return their number."""
    (clip,), _ = AVDecoder(file).get_video_clips([(start_s, start_s + CLIP_S)], video_out_frame_size=(456, 256))
    return len(clip)


def needed_bytes(data: bytes, start_s: float) -> tuple[int, int]:
    """Return the bytes of the header, and of the groups of pictures that a clip touches."""
    with av.open(io.BytesIO(data), "r") as container:
        video: Any = container.streams.video[0]
        keys = [
            (float(packet.pts * video.time_base), packet.pos)
            for packet in container.demux(video)
            if packet.is_keyframe and packet.pos is not None and packet.pts is not None
        ]
    first = max(place for at, place in keys if at <= start_s)
    after = [place for at, place in keys if at >= start_s + CLIP_S]
    header = keys[0][1]
    tail = data.rfind(b"moov"), data.rfind(bytes.fromhex("1C53BB6B")), data.rfind(b"mfra")
    header += max((len(data) - at for at in tail if at > keys[-1][1]), default=0)
    return header, (min(after) if after else len(data)) - first


@contextmanager
def fresh(root: str) -> Generator[DecodeFileStore]:
    """Open the dataset again; for a bucket, with an empty cache."""
    with ExitStack() as stack:
        if "://" in root:
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            use_storage(StorageSettings(cache_dir=folder))
        store = WebdatasetFileStore(root)
        _ = store.read_or_open([next(iter(NAMES.values()))], lambda part: 1)  # opens the shard
        yield DecodeFileStore(store, decoder=SampleDecoder())
        store.close()


def decode_bare(data: bytes, start_s: float, *, from_start: bool = False) -> None:
    """Decode only the pictures of the clip and their references, or all pictures before it."""
    with av.open(io.BytesIO(data), "r") as container:
        video: Any = container.streams.video[0]
        video.codec_context.thread_count = 1
        if not from_start:
            container.seek(int(start_s / video.time_base), stream=video)
        for frame in container.decode(video):
            if frame.time is not None and frame.time > start_s + CLIP_S:
                return
            if frame.time is not None and frame.time >= start_s - 1 / _FPS:
                frame.reformat(456, 256, "rgb24", interpolation="BILINEAR").to_ndarray()


def measure(
    root: str,
    keys: list[str],
    starts: dict[str, list[float]],
    needed: dict[tuple[str, float], Any],
    link_bytes_s: float,
) -> None:
    """Print a line for each file."""
    remote = "://" in root
    where = f"in a bucket, {link_bytes_s / 1e6:.0f} MB/s" if remote else "on disk"
    print(
        f"{where:<24} needed   read  ratio  worst  reads |"
        "    clip,    cpu |   whole,    cpu | times,  cpu | floor, cpu  times"
    )
    for key in keys:
        name = NAMES[key]
        rows: list[tuple[float, ...]] = []
        for start_s in starts[key]:
            clip = partial(decode_clip, start_s=start_s)
            with fresh(root) as videos, counting(remote, link_bytes_s) as sizes:
                frames = clip(videos.get(name).stream)
            if abs(frames - (whole := int(CLIP_S * _FPS))) > 1:
                raise RuntimeError(f"{name}: {frames} frames instead of {whole}")
            with fresh(root) as videos:
                clip_s = seconds(lambda videos=videos, name=name, clip=clip: clip(videos.get(name).stream))
            with fresh(root) as videos:
                whole_s = seconds(lambda files=videos.inner, name=name, clip=clip: clip(io.BytesIO(files.get(name))))
                data = videos.inner.get(name)
            _, floor_s = seconds(partial(decode_bare, data, start_s))
            rows.append((sum(needed[key, start_s]), sum(sizes), len(sizes), *clip_s, *whole_s, floor_s))
        ratios = [read / need for need, read, *_ in rows]  # one per clip: some touch one group, some two
        need, read, count, clip_s, clip_cpu_s, whole_s, whole_cpu_s, floor_s = map(
            statistics.median, zip(*rows, strict=True)
        )
        print(
            f"{key:<24} {need / 1e6:5.2f}M {read / 1e6:5.2f}M {statistics.median(ratios):6.2f} {max(ratios):6.2f}"
            f" {count:6.0f} |"
            f" {clip_s:6.3f}s {clip_cpu_s:6.3f}s | {whole_s:6.3f}s {whole_cpu_s:6.3f}s |"
            f" {whole_s / clip_s:4.1f}x {whole_cpu_s / clip_cpu_s:4.1f}x |"
            f" {floor_s:6.3f}s   {clip_cpu_s / floor_s:5.2f}x",
            flush=True,
        )


def seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """Return the wall-clock and processor time of a call."""
    began, began_cpu = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - began, time.process_time() - began_cpu


@contextmanager
def counting(remote: bool, link_bytes_s: float = math.inf) -> Generator[list[int]]:
    """Collect the sizes of the reads inside the block; complete at its end."""
    sizes: list[int] = []
    if remote:
        server = server_here()
        server.reset()
        server.delay(_LATENCY_S, link_bytes_s)
        yield sizes
        sizes += [request.sent_bytes for request in server.requests(".tar")]
        return
    read = LocalFiles.read_spans

    def noting(store: LocalFiles, paths: Any, file: Any, start: Any, stop: Any) -> list[bytes]:
        sizes.extend((stop - start).tolist())
        return read(store, paths, file, start, stop)

    LocalFiles.read_spans = noting  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        LocalFiles.read_spans = read  # type: ignore[method-assign]


def main(
    containers: Annotated[list[str] | None, typer.Argument()] = None,
    clips: int = 5,
    only: Literal["disk", "bucket"] | None = None,
    link: Annotated[float, typer.Option(help="Bandwidth of the bucket, in megabytes per second.")] = 100.0,
    indexed: Annotated[bool, typer.Option("--indexed", help="First make the indexes that videos lack.")] = False,
    from_start: Annotated[
        float | None, typer.Option(help="Start of a clip to decode from the beginning of the video, in seconds.")
    ] = None,
    cache: Path = CACHE,
) -> None:
    keys = containers or [*CONTAINERS]
    cache.mkdir(parents=True, exist_ok=True)
    root = made_dataset(cache)
    warm(root)
    chance = random.Random(0)
    starts = {key: [chance.uniform(10, SECONDS - 10) for _ in range(clips)] for key in keys}
    store = WebdatasetFileStore(root)
    needed = {(key, at): needed_bytes(store.get(NAMES[key]), at) for key in keys for at in starts[key]}
    if indexed:
        print(f"made the missing indexes of {index_videos(root)} videos")
    else:
        (root / ".nv-meta" / SEEK_TABLE).unlink(missing_ok=True)
    if from_start is not None:
        data = store.get(NAMES[keys[0]])
        clock_s, cpu_s = seconds(partial(decode_bare, data, from_start, from_start=True))
        print(f"decoded from the beginning to {from_start} s: {clock_s:.1f} s, {cpu_s:.1f} s processor time")
    if only != "bucket":
        measure(str(root), keys, starts, needed, math.inf)
    if only != "disk":
        with bucket_of(root):
            measure(f"s3://{BUCKET}/{root.name}", keys, starts, needed, link * 1e6)


if __name__ == "__main__":
    program(main)
