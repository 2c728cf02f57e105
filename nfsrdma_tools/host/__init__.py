# SPDX-License-Identifier: Apache-2.0
"""The machine as it is: reads facts, makes one change, proves it."""
