# SPDX-License-Identifier: Apache-2.0
"""Which samples made a step, and samples and batches made again."""
