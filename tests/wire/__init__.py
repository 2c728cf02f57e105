# SPDX-License-Identifier: Apache-2.0
"""What the tests of kmod/wire/*.c stand on; docs/dev/testing-the-module.md says what they do."""
