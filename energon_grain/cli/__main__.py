# SPDX-License-Identifier: Apache-2.0
"""`python -m energon_grain.cli`, where no console script is installed."""

from __future__ import annotations

from energon_grain.cli import main

main()
