# SPDX-License-Identifier: Apache-2.0
"""Workers of other machines: `RayPool` encodes samples in the actors of a Ray cluster."""

from energon_grain.cluster.ray_pool import RayPool

__all__ = ["RayPool"]
