# SPDX-License-Identifier: Apache-2.0
"""Running a dataset: compile, plan, read, encode, lanes, prefetch, cursor, errors and statistics."""
