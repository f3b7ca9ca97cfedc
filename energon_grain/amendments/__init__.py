# SPDX-License-Identifier: Apache-2.0
"""Runs that change: another mixture from a step on, with every dataset going on where it was."""
