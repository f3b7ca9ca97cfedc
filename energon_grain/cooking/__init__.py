# SPDX-License-Identifier: Apache-2.0
"""Making typed samples from crude ones: cookers, and the auxiliary stores that they read."""
