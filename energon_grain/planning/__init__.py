# SPDX-License-Identifier: Apache-2.0
"""Plans over what is known of samples before they are read: equal work of hosts, shares of cost, packs."""
