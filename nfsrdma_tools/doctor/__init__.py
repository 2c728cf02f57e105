# SPDX-License-Identifier: Apache-2.0
"""Checks of a machine, the bundle that records it, and the anonymized form of the bundle."""
