# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a machine: checks, the bundle that records it, and its anonymized form."""
