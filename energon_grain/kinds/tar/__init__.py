# SPDX-License-Identifier: Apache-2.0
"""Tars, with and without preparation."""
