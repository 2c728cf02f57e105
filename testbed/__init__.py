# SPDX-License-Identifier: Apache-2.0
"""Code that tests and benchmarks share: labs, functions that run in their nodes, faults, programs.

Not part of the wheel.
"""
