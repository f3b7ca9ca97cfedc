# SPDX-License-Identifier: Apache-2.0
"""Observing streams: statistics, bottlenecks, traces, metrics, hangs, and the automatic number of workers."""
