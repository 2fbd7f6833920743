# SPDX-License-Identifier: Apache-2.0
"""A lock file's text as data: the one reading for the depot's verbs and for playbooks.

For the controller alone (hosts get the lock parsed, and may have no PyYAML), hence the late import.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from .lock import LockError


def load(content: bytes, file: str) -> Any:
    """A lock file's YAML; an empty one is an empty mapping.

    Raises LockError, also for a key that stands there twice.
    """
    import yaml

    try:
        found = yaml.load(content, _once())  # noqa: S506  a safe loader
    except yaml.constructor.ConstructorError as error:
        raise LockError(file, _line(error), str(error.problem)) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: 2026-13-45, no UTF-8
        raise LockError(
            file, _line(error), f"is no YAML: {getattr(error, 'problem', None) or error}"
        ) from error
    return {} if found is None else found


def _line(error: Exception) -> str:
    """``line 4``, where the parser says it."""
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}" if mark is not None else ""


@lru_cache(maxsize=1)
def _once() -> Any:
    """A loader whose mappings name a key once: a merge can leave a tag twice, and the last would win."""
    import yaml

    class Once(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen = set()
            for name, _value in node.value:
                if isinstance(name, yaml.ScalarNode):
                    if name.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None, None, f"{name.value} stands there twice", name.start_mark
                        )
                    seen.add(name.value)
            return super().construct_mapping(node, deep)

        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            number: int = super().construct_yaml_int(node)
            if abs(number) >> 63:  # no file is that large, and Python does not even print it
                raise yaml.constructor.ConstructorError(
                    None, None, "a number of more than 63 bits", node.start_mark
                )
            return number

    Once.add_constructor("tag:yaml.org,2002:int", Once.construct_yaml_int)

    return Once
