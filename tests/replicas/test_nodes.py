"""Replicas on several nodes, which processes and threads of this machine play."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from replica_loaders import Gathering, alone, dataset_of, files_in_memory, in_processes, in_threads, replica_group, rows

from energon_grain import ConfigError, WorkerConfig, WorkerError, get_savable_loader
from energon_grain.replicas import addresses, far, node


@pytest.fixture(scope="module")
def path(text_dataset: Callable[..., Path]) -> Path:
    return text_dataset(97)


@pytest.mark.parametrize(
    ("across", "nodes", "readers"),
    [("broadcast", "aabb", [0]), ("broadcast", "abab", [0]), ("broadcast", "aabc", [0]), ("read", "abba", [0, 1])],
)
def test_one_node_reads_for_all_if_asked(path: Path, across: Any, nodes: str, readers: list[int]) -> None:
    files = files_in_memory()
    with in_threads(path, 4, nodes=nodes, across=across) as loaders:
        for expected in alone(path, 30):
            assert [rows(next(loader)) for loader, _ in loaders] == [expected] * 4
        assert [rank for rank, (_, encoder) in enumerate(loaders) if encoder.decoded] == readers
        states = [loader.save_state_rank() for loader, _ in loaders]
        assert states == [states[0]] * 4
    assert files_in_memory() == files


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_what_was_handed_on_arrives_after_the_reader_closed(path: Path, worker_type: Any) -> None:
    with in_threads(path, 3, nodes="abb", worker_type=worker_type) as loaders:
        first, *others = [loader for loader, _ in loaders]
        expected = alone(path, 3)
        assert [rows(next(first)) for _ in range(2)] == expected[:2]
        first.close()
        for loader in others:
            assert [rows(next(loader)) for _ in range(2)] == expected[:2]


def test_a_broken_connection_is_made_again(path: Path) -> None:
    expected = alone(path, 60)
    with in_threads(path, 3, nodes="abb") as loaders, ThreadPoolExecutor(3) as threads:
        for step in range(3):
            assert [rows(next(loader)) for loader, _ in loaders] == [expected[step]] * 3
        (first, _), *others = loaders
        others[0][0].stream._connections.far()._end.shutdown(socket.SHUT_RDWR)
        ahead = threads.submit(lambda: [rows(next(first)) for _ in range(3, 60)])

        def until_lost(number: int) -> int:
            loader = others[number][0]
            with pytest.raises(WorkerError, match="rank 0, which reads the batches of rank"):
                for _ in range(20):  # what has arrived before
                    next(loader)
            return loader.save_state_rank()["step"]

        places = list(threads.map(until_lost, range(2)))

        def rest(number: int) -> list[Any]:
            return [rows(next(others[number][0])) for _ in range(places[number], 60)]

        assert list(threads.map(rest, range(2))) == [expected[place:] for place in places]
        assert ahead.result() == expected[3:]


def test_connections_of_others_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[socket.socket] = []
    listen = far.listen

    def listened() -> socket.socket:
        made.append(listen())
        return made[-1]

    monkeypatch.setattr(far, "listen", listened)
    with in_threads(path, 2, nodes="ab") as loaders:
        expected = alone(path, 40)
        assert [rows(next(loader)) for loader, _ in loaders] == [expected[0]] * 2
        address = far.FarAddress(hosts=["127.0.0.1"], port=made[0].getsockname()[1], secret=bytes(16))
        for port in {each.getsockname()[1] for each in made}:
            address = far.FarAddress(hosts=["127.0.0.1"], port=port, secret=bytes(16))
            with pytest.raises(OSError, match=r"another program has its port|reset|does not accept"):
                far.connect(address, 1, 0.5)
        for step in range(1, 40):
            assert [rows(next(loader)) for loader, _ in loaders] == [expected[step]] * 2


def test_a_reader_that_cannot_be_reached_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(node, "own_addresses", lambda: ["127.0.0.2"])
    monkeypatch.setattr(far, "listen", lambda: socket.create_server(("127.0.0.1", 0)))
    gathering = Gathering(2)
    with ThreadPoolExecutor(2) as threads:
        made = [threads.submit(one_of_two, path, rank, gathering) for rank in range(2)]
    errors = [str(each.exception()) for each in made]
    assert errors[0] == "ranks [1] have not connected to rank 0, which reads"
    assert "rank 1 cannot connect to rank 0 on another node, which reads for all: 127.0.0.2 port" in errors[1]
    assert "or let each node read, with across='read'" in errors[1]


def one_of_two(path: Path, rank: int, gathering: Gathering) -> None:
    group = replica_group(rank, gathering, nodes="ab")
    get_savable_loader(dataset_of(path, WorkerConfig(rank=0, world_size=1, replicas=group, across="broadcast")))


def test_addresses_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("MASTER_ADDR", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert addresses.own_addresses() == ["127.0.0.1"]
    for chooses_none in ("^docker", "no-such-interface"):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", chooses_none)
        outside = addresses.own_addresses()
        assert outside
        assert outside == ["127.0.0.1"] or not any(address.startswith("127.") for address in outside)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert addresses.own_addresses() == ["127.0.0.1"] or "::1" in addresses.own_addresses()


def test_other_ways_are_refused() -> None:
    with pytest.raises(ConfigError, match="across='ring'"):
        WorkerConfig(rank=0, world_size=2, replicas=[[0, 1]], across="ring")  # pyright: ignore[reportArgumentType]


def steps_of(replicas: list[Any], count: int) -> list[Any]:
    for replica in replicas:
        replica.ask("steps", count)
    return [replica.answer()[0] for replica in replicas]


@pytest.mark.slow
def test_dead_processes_of_another_node_hold_nobody_up(path: Path, tmp_path: Path) -> None:
    with in_processes(path, tmp_path / "gather", 4, "aabb") as (first, second, third, fourth):
        expected = alone(path, 60)
        assert steps_of([first, second, third, fourth], 3) == [expected[:3]] * 4
        third.kill()  # it got the batches for the fourth
        assert steps_of([first, second], 20) == [expected[3:23]] * 2
        fourth.ask("steps", 20)
        error, seconds = fourth.answer()
        assert "WorkerError: rank 2, which reads the batches of rank 3, has ended" in error
        assert seconds < 5  # below 1 on a quiet machine; a connection without a word would be noticed after 10
        fourth.ask("state")
        step = fourth.answer()[0]["step"]
        assert steps_of([fourth], 23 - step) == [expected[step:23]]  # it reads what it missed, and gets the rest
        before = decoded(fourth)
        assert steps_of([first, second, fourth], 20) == [expected[23:43]] * 3
        assert decoded(fourth) == before
        fourth.kill()
        assert steps_of([first, second], 10) == [expected[43:53]] * 2


def decoded(replica: Any) -> int:
    """The number of samples that a replica has decoded, once its threads have ended what they read ahead."""
    counts = [-1]
    while True:
        replica.ask("decoded")
        counts.append(replica.answer()[0])
        if counts[-1] == counts[-2]:
            return counts[-1]
        time.sleep(0.5)


@pytest.mark.slow
def test_after_a_dead_reader_the_next_rank_reads_for_all_nodes(path: Path, tmp_path: Path) -> None:
    files = files_in_memory()
    with in_processes(path, tmp_path / "gather", 4, "aabb") as (first, *others):
        expected = alone(path, 100)
        assert steps_of([first, *others], 3) == [expected[:3]] * 4
        first.kill()
        for replica in others:
            replica.ask("steps", 100)
        for replica in others:
            error, seconds = replica.answer()
            assert "WorkerError: rank 0, which reads the batches of rank" in error
            assert seconds < 5  # below 1 on a quiet machine; a connection without a word would be noticed after 10
        places = []
        for replica in others:
            replica.ask("state")
            places.append(replica.answer()[0]["step"])
        last = max(places)
        for replica, place in zip(others, places, strict=True):
            replica.ask("steps", last - place + 10)
        for replica, place in zip(others, places, strict=True):
            assert replica.answer()[0] == expected[place : last + 10]
        second, third, fourth = others
        before = decoded(third), decoded(fourth)
        assert steps_of(others, 5) == [expected[last + 10 : last + 15]] * 3
        assert (decoded(third), decoded(fourth)) == before
        assert decoded(second)
    assert files_in_memory() == files
