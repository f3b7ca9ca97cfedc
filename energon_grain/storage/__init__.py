# SPDX-License-Identifier: Apache-2.0
"""Local files, read in sorted and merged ranges, and the interface to object stores."""
