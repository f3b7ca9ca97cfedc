# SPDX-License-Identifier: Apache-2.0
"""`python -m energon_grain.cli`, the command without its console script."""

from __future__ import annotations

from energon_grain.cli import main

main()
