# SPDX-License-Identifier: Apache-2.0
"""The measured claims. Each module prints one JSON document: ``python -m benchmarks.NAME --json``."""
