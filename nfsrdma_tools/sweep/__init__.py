# SPDX-License-Identifier: Apache-2.0
"""From a plan over trials and a store to a choice."""
