"""Traffic of the hosts of a run from a bucket in one pass, each with its own cache. All in one process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.child import serve
from benchmarks.object_store import server_here
from benchmarks.ours import CrudeBlob, weigh
from energon_grain import WorkerConfig, get_loader, get_train_dataset
from energon_grain.storage.settings import StorageSettings, use_storage
from energon_grain.stores.object_client import shared_client


class _Host:
    """One reader, and the bytes that it fetched beyond those it delivered."""

    def __init__(self, url: str, rank: int, hosts: int, blocks: bool, settings: StorageSettings) -> None:
        use_storage(settings)
        dataset = get_train_dataset(
            url,
            worker_config=WorkerConfig(rank, hosts, 0),
            batch_size=32,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100 if blocks else 1,
            task_encoder=CrudeBlob(),
            repeat=False,  # does not prefetch the next pass
        )
        self._batches = iter(get_loader(dataset))
        self._traffic = shared_client(settings).traffic
        self._index_bytes = self._traffic.bytes_read
        self.used = self.ahead = 0

    @property
    def fetched(self) -> int:
        return self._traffic.bytes_read - self._index_bytes

    def step(self) -> None:
        _, payload = weigh(next(self._batches))
        self.ahead = max(self.ahead, self.fetched - self.used)
        self.used += payload


def fetched(
    url: str, original: str, samples: int, hosts: int, blocks: bool, cache_mb: float, ahead_mb: float
) -> dict[str, Any]:
    """Measure requests and bytes of one pass over the data, over all hosts.

    `ahead_mb`: the maximum that one host has fetched and not delivered, yet or at all.
    """
    server = server_here()
    with tempfile.TemporaryDirectory() as folder:
        readers = [
            _Host(
                url,
                rank,
                hosts,
                blocks,
                StorageSettings(
                    cache_dir=str(Path(folder, str(rank))),
                    cache_bytes=int(cache_mb * 1e6),
                    ahead_bytes=int(ahead_mb * 1e6),
                ),
            )
            for rank in range(hosts)
        ]
        server.reset()
        for _ in range(samples // (32 * hosts)):
            for reader in readers:
                reader.step()
        requests = len(server.requests(".tar"))
        server.reset()
        total = sum(reader.fetched for reader in readers)
        return {
            "requests": requests,
            "fetched_mb": total / 1e6,
            "times_data": total / sum(shard.stat().st_size for shard in Path(original).glob("*.tar")),
            "ahead_mb": max(reader.ahead for reader in readers) / 1e6,
        }


if __name__ == "__main__":
    serve(fetched=fetched)
