"""The compiled dataset on its way to worker processes."""

from __future__ import annotations

import cloudpickle

from energon_grain.errors import WorkerError
from energon_grain.stream.spec import StreamSpec


def pickled_spec(spec: StreamSpec, *, otherwise: str) -> bytes:
    """Pickle a dataset for a worker process; hooks may be defined in the script.

    Args:
        spec: The compiled dataset, without what workers do not need.
        otherwise: What else to do about hooks that cannot be pickled.

    Raises:
        WorkerError: It cannot be pickled.
    """
    try:
        return cloudpickle.dumps(spec)
    except Exception as error:
        raise WorkerError(
            f"the dataset cannot be sent to worker processes: {type(error).__name__}: {error}; a hook or its task "
            f"encoder holds something that cannot be pickled. Create it inside the hook, or {otherwise}"
        ) from error
