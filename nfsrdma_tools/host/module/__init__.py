# SPDX-License-Identifier: Apache-2.0
"""The transport module: build, load, swap, install, parameters, status."""
