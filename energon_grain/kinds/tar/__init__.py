# SPDX-License-Identifier: Apache-2.0
"""Tars, prepared or bare."""
