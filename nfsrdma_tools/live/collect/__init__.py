# SPDX-License-Identifier: Apache-2.0
"""Read the host and the probes once an interval."""
