# SPDX-License-Identifier: Apache-2.0
"""Prepared folders of ArrayRecord files."""
