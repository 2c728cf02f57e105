# SPDX-License-Identifier: Apache-2.0
"""The dashboard and the exporter: HTTP server, access control, the data of the page."""
