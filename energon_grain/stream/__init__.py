# SPDX-License-Identifier: Apache-2.0
"""The engine: compiling, planning, reading, encoding, lanes, prefetch, cursors, errors and statistics."""
