# SPDX-License-Identifier: Apache-2.0
"""Our transport module: build, load, swap, install, parameters, status."""
