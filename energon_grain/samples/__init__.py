# SPDX-License-Identifier: Apache-2.0
"""Sample types and batches."""
