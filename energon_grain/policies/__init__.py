# SPDX-License-Identifier: Apache-2.0
"""Policies for mixtures that follow the loss: from the losses of datasets to their next weights."""

from energon_grain.policies.ado import ADO
from energon_grain.policies.doremi import DoReMi
from energon_grain.policies.policy import MixturePolicy

__all__ = ["ADO", "DoReMi", "MixturePolicy"]
