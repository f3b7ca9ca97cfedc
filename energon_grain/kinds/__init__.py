# SPDX-License-Identifier: Apache-2.0
"""The kinds of data that come with the library, one package each.

This file imports none of them, so that a worker process that scans shards loads only what reads those shards.
"""
