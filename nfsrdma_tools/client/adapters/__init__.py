# SPDX-License-Identifier: Apache-2.0
"""Adapters of stores of blocks to inference frameworks: a module for each, which imports it."""
