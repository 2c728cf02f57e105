# SPDX-License-Identifier: Apache-2.0
"""Live figures of mounts and servers, for a terminal, a web page and Prometheus."""
