# SPDX-License-Identifier: Apache-2.0
"""Worker processes: a pool of fresh interpreters, their program, and the communication between processes."""
