# SPDX-License-Identifier: Apache-2.0
"""Looking at data: samples with their fields, in a terminal and as a page."""
