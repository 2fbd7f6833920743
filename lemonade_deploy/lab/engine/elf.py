# SPDX-License-Identifier: Apache-2.0
"""Tiny but real ELF shared objects, written without a compiler.

The lab's bundle stands in for AMD's, so it needs libraries that `dlopen` and `import`
accept: the simulated ROCm runtime, `vllm._rocm_C`, and the GPU backend that llama.cpp
links. A lab host carries no compiler, hence this writer (x86-64, System V ABI).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

PAGE = 0x1000
# ELF constants (System V gABI, psABI x86-64).
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELAENT = 4, 5, 6, 7, 8, 9
DT_STRSZ, DT_SYMENT, DT_SONAME = 10, 11, 14
R_X86_64_64, R_X86_64_RELATIVE = 1, 8
RETURN_ZERO = b"\x31\xc0\xc3"  # xor eax,eax; ret
# PyModuleDef: ob_refcnt, ob_type, m_init, m_index, m_copy, m_name, m_doc, m_size, then six
# pointers that may be null (CPython 3.7 to 3.13, Include/moduleobject.h).
MODULE_DEF_WORDS = 14
RELOCATIONS = 2  # of a module: its definition's type and name


@dataclass
class _Names:
    """A string table: text at offsets."""

    data: bytearray = field(default_factory=lambda: bytearray(b"\0"))

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def _hash_table(count: int) -> bytes:
    """A SysV hash table with one bucket: every symbol in one chain."""
    chain = [0, *range(2, count), 0]
    return struct.pack(f"<{3 + count}I", 1, count, 1 if count > 1 else 0, *chain[:count])


def _symbol(name: int, info: int, section: int, value: int, size: int) -> bytes:
    return struct.pack("<IBBHQQ", name, info, 0, section, value, size)


def _program_header(kind: int, flags: int, start: int, size: int, align: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, flags, start, start, start, size, size, align)


def _align(value: int, to: int) -> int:
    return -(-value // to) * to


@dataclass(frozen=True)
class _Layout:
    """Where each part stands: offset in the file and address alike. Sizes in bytes."""

    count: int  # of symbols
    hash: int
    symbols: int
    strings: int
    rela: int
    text: int
    text_size: int
    dynamic: int
    dynamic_size: int
    data: int
    end: int


def _layout(functions: int, strings_size: int, module: bytes) -> _Layout:
    """Room for that many exported functions; a *module* (its name, or nothing) adds its own parts."""
    count = 1 + functions + (1 if module else 0)
    hash_at = 64 + 4 * 56  # behind the headers
    symbols = _align(hash_at + 4 * (3 + count), 8)
    strings = symbols + 24 * count
    rela = _align(strings + strings_size, 8)
    text = _align(rela + (24 * RELOCATIONS if module else 0), 16)
    text_size = 16 * functions
    dynamic = _align(text + text_size, PAGE)
    dynamic_size = 16 * (6 + (3 if module else 0) + 1)
    data = dynamic + dynamic_size
    end = data + (8 * MODULE_DEF_WORDS + len(module) if module else 0)
    return _Layout(count, hash_at, symbols, strings, rela, text, text_size, dynamic, dynamic_size, data, end)


def shared_object(soname: str, functions: Sequence[str] = (), python_module: str | None = None) -> bytes:
    """An ELF shared object whose *functions* return 0.

    With *python_module* it is also an importable, empty extension module of that name
    (multi-phase initialisation, so nothing has to be imported from libpython but a type).
    """
    names = _Names()
    soname_at = names.add(soname)
    exported = [*functions, *([f"PyInit_{python_module}"] if python_module else [])]
    offsets = [names.add(name) for name in exported]
    type_at = names.add("PyModuleDef_Type") if python_module else 0
    module = python_module.encode() + b"\0" if python_module else b""
    at = _layout(len(exported), len(names.data), module)

    symbols = [_symbol(0, 0, 0, 0, 0)]
    symbols += [_symbol(name, 0x12, 1, at.text + 16 * index, 16) for index, name in enumerate(offsets)]
    if module:
        symbols.append(_symbol(type_at, 0x10, 0, 0, 0))

    image = bytearray(at.end)

    def put(start: int, data: bytes) -> None:
        image[start : start + len(data)] = data

    put(0, _elf_header())
    put(64, _program_headers(at))
    put(at.hash, _hash_table(at.count))
    put(at.symbols, b"".join(symbols))
    put(at.strings, bytes(names.data))
    put(at.text, _text(at, len(functions), bool(module)))
    put(at.dynamic, _dynamic(at, len(names.data), soname_at, bool(module)))
    if module:
        put(at.rela, _relocations(at))
        put(at.data, struct.pack("<Q", 1))  # ob_refcnt; m_size stays 0: no per-module state
        put(at.data + 8 * MODULE_DEF_WORDS, module)
    return bytes(image)


def _text(at: _Layout, functions: int, module: bool) -> bytes:
    """The functions' code, 16 bytes each; a module's PyInit, which gives its definition, is the last."""
    text = functions * RETURN_ZERO.ljust(16, b"\x90")
    if module:
        after = at.text + len(text) + 7
        code = b"\x48\x8d\x05" + struct.pack("<i", at.data - after) + b"\xc3"  # lea rax,[def]; ret
        text += code.ljust(16, b"\x90")
    return text


def _relocations(at: _Layout) -> bytes:
    """A module definition's type, which is the last symbol, and its name."""
    kind = struct.pack("<QQq", at.data + 8, (at.count - 1) << 32 | R_X86_64_64, 0)
    return kind + struct.pack("<QQq", at.data + 40, R_X86_64_RELATIVE, at.data + 8 * MODULE_DEF_WORDS)


def _dynamic(at: _Layout, strings_size: int, soname_at: int, module: bool) -> bytes:
    """What the loader looks up."""
    entries = [(DT_HASH, at.hash), (DT_STRTAB, at.strings), (DT_SYMTAB, at.symbols)]
    entries += [(DT_STRSZ, strings_size), (DT_SYMENT, 24), (DT_SONAME, soname_at)]
    if module:
        entries += [(DT_RELA, at.rela), (DT_RELASZ, 24 * RELOCATIONS), (DT_RELAENT, 24)]
    return b"".join(struct.pack("<QQ", *entry) for entry in [*entries, (0, 0)])


def _program_headers(at: _Layout) -> bytes:
    return (
        _program_header(PT_LOAD, 5, 0, at.text + at.text_size, PAGE)
        + _program_header(PT_LOAD, 6, at.dynamic, at.end - at.dynamic, PAGE)
        + _program_header(PT_DYNAMIC, 6, at.dynamic, at.dynamic_size, 8)
        + _program_header(PT_GNU_STACK, 6, 0, 0, 16)
    )


def _elf_header() -> bytes:
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
