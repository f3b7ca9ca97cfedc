"""energon-grain for PyTorch: the program of Megatron-Energon, `peers/energon.py`, with the import redirected."""

from __future__ import annotations

import sys

import simplejpeg  # noqa: F401

import energon_grain_torch

sys.modules["megatron.energon"] = energon_grain_torch

from benchmarks.peers.energon import build_loader, restore, save, state_bytes, weigh  # noqa: E402

__all__ = ["build_loader", "restore", "save", "state_bytes", "weigh"]
