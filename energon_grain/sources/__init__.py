# SPDX-License-Identifier: Apache-2.0
"""Random-access collections of raw samples, built on formats."""
