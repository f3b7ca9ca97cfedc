# SPDX-License-Identifier: Apache-2.0
"""JSONL files. Lines are samples."""
