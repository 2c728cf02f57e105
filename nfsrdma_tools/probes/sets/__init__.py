# SPDX-License-Identifier: Apache-2.0
"""Probe sets: each module reads the maps of its program in bpf/."""
