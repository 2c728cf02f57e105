# SPDX-License-Identifier: Apache-2.0
"""Probe sets: each reads what its program in bpf/ counts."""
