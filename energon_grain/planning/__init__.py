# SPDX-License-Identifier: Apache-2.0
"""Plans made from columns before samples are read: equal work of hosts, shares of cost, packs."""
