# SPDX-License-Identifier: Apache-2.0
"""Figures and a page of a sweep, from its store alone."""
