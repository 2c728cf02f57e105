# SPDX-License-Identifier: Apache-2.0
"""Renders figures and an HTML page of a sweep from its store."""
