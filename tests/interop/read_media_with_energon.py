"""What Megatron-Energon knows of media of a dataset or folder, as JSON. Runs in Energon's environment.

Arguments: `webdataset` or `filesystem`, the folder, the file to write, then keys.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from megatron.energon import SystemFileStore
from megatron.energon.cache.file_store import WebdatasetFileStore
from megatron.energon.epathlib import EPath

if __name__ == "__main__":
    kind, folder, target, *keys = sys.argv[1:]
    store = (WebdatasetFileStore if kind == "webdataset" else SystemFileStore)(EPath(folder))
    found = {key: store.get_media_metadata(key) for key in keys}
    described = {key: [type(each).__name__, each.to_dict()] for key, each in found.items()}
    Path(target).write_text(json.dumps(described), encoding="utf-8")
