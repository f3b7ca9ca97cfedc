# SPDX-License-Identifier: Apache-2.0
"""Zarr and N5 arrays. Rows are samples."""
