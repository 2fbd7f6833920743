# SPDX-License-Identifier: Apache-2.0
"""Which models the active bundle's transformers and vLLM know, read from their own registry files.

Files (transformers 5, vLLM 0.19 to 0.32): ``transformers/models/auto/{configuration_auto,auto_mappings,
modeling_auto}.py`` map model types to classes; ``vllm/model_executor/models/registry.py`` maps
architectures to vLLM's own implementations, ``vllm/transformers_utils/config.py`` adds model types of
vLLM's own. They are read as text: importing them would take a minute and a GPU.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from .host import Host
from .refusal import Refused

_CONFIGS = ("configuration_auto.py", "auto_mappings.py")
_REGISTRY = "vllm/model_executor/models/registry.py"
_OWN_TYPES = "vllm/transformers_utils/config.py"
# Tables of models that were dropped: a name there is no support.
_GONE = re.compile(r"PREVIOUSLY|DEPRECATED|REMOVED", re.IGNORECASE)


@dataclass(frozen=True)
class Known:
    """Model types of both, architectures that vLLM implements, and classes that transformers has."""

    types: frozenset[str]
    architectures: frozenset[str]
    classes: frozenset[str]


def read(host: Host, bundle: str) -> Known | None:
    """What the bundle in *bundle* knows; None where it holds no vLLM of this form (then nobody can tell)."""
    found = host.glob(f"{bundle}/lib/python3*/site-packages/{_REGISTRY}") if bundle else []
    if not found:
        return None
    site = found[0].removesuffix("/" + _REGISTRY)
    auto = f"{site}/transformers/models/auto"
    types: set[str] = set()
    for name in _CONFIGS:
        types |= set(_keys(host.read(f"{auto}/{name}") or "", r"CONFIG_MAPPING_NAMES"))
    types |= set(_keys(host.read(f"{site}/{_OWN_TYPES}") or "", r"_CONFIG_REGISTRY"))
    listed = _keys(host.read(found[0]) or "", r"_[A-Z_]*MODELS")
    architectures = {name for name in listed if name[:1].isupper()}  # the others name vLLM's own files
    classes = set(re.findall(r"[\"'](\w+For\w+)[\"']", host.read(f"{auto}/modeling_auto.py") or ""))
    if not types or not architectures:
        return None  # another form than the ones that are known: no ground to refuse anything
    return Known(frozenset(types), frozenset(architectures), frozenset(classes))


def _keys(source: str, table: str) -> Iterator[str]:
    """String keys of the dictionaries assigned (or added) to a name that *table* matches."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return  # made for a newer Python than the host's
    for node in ast.walk(tree):
        if _table_name(node, table):
            for inner in ast.walk(node):
                yield from _entries(inner)


def _table_name(node: ast.AST, table: str) -> bool:
    names: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        names = node.targets
    elif isinstance(node, ast.AnnAssign):
        names = [node.target]
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        names = [called.value] if isinstance(called, ast.Attribute) and called.attr == "update" else []
    return any(
        isinstance(name, ast.Name) and re.fullmatch(table, name.id) and not _GONE.search(name.id)
        for name in names
    )


def _entries(node: ast.AST) -> Iterator[str]:
    """Keys of ``{"a": …}``, ``dict(a=…)``, and first parts of ``("a", …)``."""
    if isinstance(node, ast.Dict):
        keys = [key for key in node.keys if isinstance(key, ast.Constant)]
        yield from (key.value for key in keys if isinstance(key.value, str))
    elif isinstance(node, ast.Call):
        yield from (word.arg for word in node.keywords if word.arg)
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2:
        first = node.elts[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def check(known: Known, checkpoint: str, config: str, bundle: str) -> None:
    """Refused for a model (its ``config.json``) that neither of the two knows."""
    try:
        told = json.loads(config)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise Refused(f"{checkpoint}: its config.json is no JSON object.", "Choose another checkpoint.")
    name = bundle.rpartition("/")[2]
    kind = str(told.get("model_type") or "")
    listed = told.get("architectures")
    architectures = [str(one) for one in listed] if isinstance(listed, list) else []
    own_code = bool(told.get("auto_map"))  # brings its own class; vLLM wants --trust-remote-code for it
    if kind and kind not in known.types and not own_code:
        raise Refused(
            f"{checkpoint} is of the type {kind}, which the transformers of the bundle {name} do not know.",
            "Choose another model or a newer vllm_rocm_release.",
        )
    able = known.architectures | known.classes
    if architectures and not own_code and not any(one in able for one in architectures):
        raise Refused(
            f"{checkpoint} has the architecture {architectures[0]}, which the vLLM of the bundle {name} "
            "does not know.",
            "Choose another model or a newer vllm_rocm_release.",
        )
