# SPDX-License-Identifier: Apache-2.0
"""Local files read in sorted, merged ranges, and the door to object stores."""
