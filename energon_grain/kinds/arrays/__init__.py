# SPDX-License-Identifier: Apache-2.0
"""Arrays of zarr and N5. Rows are samples."""
