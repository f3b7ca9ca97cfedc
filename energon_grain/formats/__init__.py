# SPDX-License-Identifier: Apache-2.0
"""What lies on disk: tar, .tar.idx, .nv-meta, the columnar index."""
