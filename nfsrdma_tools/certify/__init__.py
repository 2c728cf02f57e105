# SPDX-License-Identifier: Apache-2.0
"""Certify a pair of hosts: the steps, their results, and a row for the page of tested hardware."""
