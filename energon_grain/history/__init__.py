# SPDX-License-Identifier: Apache-2.0
"""Finding the samples of a step, and making samples and batches again."""
