"""Objects through a helper process, for processes in which TensorStore cannot be used: children by a fork."""

from __future__ import annotations

import functools
import pickle
from multiprocessing.connection import Connection
from typing import Any, cast

from energon_grain.storage.given_up import LOOK_SECONDS, given_up
from energon_grain.storage.helper_process import helper_process, serve_connections
from energon_grain.storage.object_error import GIVEN_UP, ObjectError
from energon_grain.storage.storage_settings import StorageSettings
from energon_grain.storage.tensorstore_objects import Fetched, TensorStoreObjects


class HelperObjects:
    """`Objects` of a helper process, which starts with the first request.

    Args:
        settings: How stores are reached.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings

    def read(
        self, url: str, start: int | None, stop: int | None, known: bytes | None, timeout_s: float
    ) -> Fetched | None:
        """See `Objects`."""
        return self._ask("read", url, start, stop, known, timeout_s)

    def list(self, url: str, timeout_s: float) -> list[str]:
        """See `Objects`."""
        return self._ask("list", url, timeout_s)

    def write(self, url: str, data: bytes, timeout_s: float) -> bytes:
        """See `Objects`."""
        return self._ask("write", url, data, timeout_s)

    def delete(self, url: str, timeout_s: float) -> None:
        """See `Objects`."""
        self._ask("delete", url, timeout_s)

    def _ask(self, what: str, *arguments: Any) -> Any:
        helper = helper_process(__name__)
        try:
            connection = helper.connection()
            connection.send((self._settings, what, arguments))
            while not connection.poll(LOOK_SECONDS):
                if given_up():
                    raise ObjectError(GIVEN_UP, passing=False)
            answer = cast("tuple[str, Any]", connection.recv())  # from our own process, over a private socket
            if answer[0] == "fetched":
                return Fetched(connection.recv_bytes() if answer[1][1] else None, answer[1][0])
        except (EOFError, OSError) as error:
            helper.forget()
            raise ObjectError(f"the helper process ended ({type(error).__name__})", passing=True) from None
        except BaseException:
            helper.forget()  # an answer that nobody waits for any more would be taken for the next one
            raise
        if answer[0] == "error":
            raise answer[1]
        return answer[1]


def serve() -> None:
    """The program of the helper."""
    serve_connections(functools.partial(_serve, objects={}))


def _serve(connection: Connection, objects: dict[bytes, TensorStoreObjects]) -> None:
    settings, what, arguments = cast("tuple[StorageSettings, str, tuple[Any, ...]]", connection.recv())
    key = pickle.dumps(settings)
    try:
        store = objects.setdefault(key, TensorStoreObjects(settings))
        found = getattr(store, what)(*arguments)
    except ObjectError as error:
        connection.send(("error", error))
        return
    except Exception as error:
        connection.send(("error", ObjectError(f"{type(error).__name__}: {error}", passing=False)))
        return
    if isinstance(found, Fetched):
        connection.send(("fetched", (found.generation, found.data is not None)))
        if found.data is not None:
            connection.send_bytes(found.data)
    else:
        connection.send(("value", found))
