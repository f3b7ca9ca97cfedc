# SPDX-License-Identifier: Apache-2.0
"""What happens in a stream, as numbers: statistics, what limits the rate, traces, metrics, hangs, automatic workers."""
