# SPDX-License-Identifier: Apache-2.0
"""Pure functions of a sample or of a list of samples: decode, map fields, batch."""
