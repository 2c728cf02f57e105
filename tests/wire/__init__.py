# SPDX-License-Identifier: Apache-2.0
"""Models and bindings for the tests of kmod/wire/*.c; see docs/dev/testing-the-module.md."""
