# SPDX-License-Identifier: Apache-2.0
"""File formats: .nv-meta, split files, the columnar index."""
