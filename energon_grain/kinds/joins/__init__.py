# SPDX-License-Identifier: Apache-2.0
"""Joins: rows of several datasets and arrays with the same keys, as leaves of a configuration."""
