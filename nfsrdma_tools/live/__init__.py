# SPDX-License-Identifier: Apache-2.0
"""What happens now, once an interval, shown in a terminal, a browser and to Prometheus."""
