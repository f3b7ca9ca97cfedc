# SPDX-License-Identifier: Apache-2.0
"""The order of samples as arithmetic: index maps from positions to draws."""
