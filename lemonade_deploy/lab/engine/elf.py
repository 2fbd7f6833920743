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


def shared_object(soname: str, functions: Sequence[str] = (), python_module: str | None = None) -> bytes:
    """An ELF shared object whose *functions* return 0.

    With *python_module* it is also an importable, empty extension module of that name
    (multi-phase initialisation, so nothing has to be imported from libpython but a type).
    """
    names = _Names()
    soname_at = names.add(soname)
    symbols = [_symbol(0, 0, 0, 0, 0)]
    header_size = 64 + 4 * 56
    exported = [*functions, *([f"PyInit_{python_module}"] if python_module else [])]
    offsets = [names.add(name) for name in exported]
    type_at = names.add("PyModuleDef_Type") if python_module else 0
    count = 1 + len(exported) + (1 if python_module else 0)
    relocations = 2 if python_module else 0

    hash_at = header_size
    symbols_at = _align(hash_at + 4 * (3 + count), 8)
    strings_at = symbols_at + 24 * count
    rela_at = _align(strings_at + len(names.data), 8)
    text_at = _align(rela_at + 24 * relocations, 16)
    text_size = 16 * len(exported)
    dynamic_at = _align(text_at + text_size, PAGE)
    dynamic_size = 16 * (6 + (3 if relocations else 0) + 1)
    data_at = dynamic_at + dynamic_size
    module_name = (python_module or "").encode() + b"\0"
    end = data_at + (8 * MODULE_DEF_WORDS + len(module_name) if python_module else 0)

    text = bytearray()
    for index, name in enumerate(exported):
        at = text_at + 16 * index
        symbols.append(_symbol(offsets[index], 0x12, 1, at, 16))
        if python_module and name == f"PyInit_{python_module}":
            code = b"\x48\x8d\x05" + struct.pack("<i", data_at - (at + 7)) + b"\xc3"  # lea rax,[def]; ret
        else:
            code = RETURN_ZERO
        text += code.ljust(16, b"\x90")
    rela = b""
    if python_module:
        symbols.append(_symbol(type_at, 0x10, 0, 0, 0))
        rela = struct.pack("<QQq", data_at + 8, (count - 1) << 32 | R_X86_64_64, 0)
        rela += struct.pack("<QQq", data_at + 40, R_X86_64_RELATIVE, data_at + 8 * MODULE_DEF_WORDS)

    dynamic = [(DT_HASH, hash_at), (DT_STRTAB, strings_at), (DT_SYMTAB, symbols_at)]
    dynamic += [(DT_STRSZ, len(names.data)), (DT_SYMENT, 24), (DT_SONAME, soname_at)]
    if relocations:
        dynamic += [(DT_RELA, rela_at), (DT_RELASZ, 24 * relocations), (DT_RELAENT, 24)]
    dynamic.append((0, 0))

    image = bytearray(end)

    def put(at: int, data: bytes) -> None:
        image[at : at + len(data)] = data

    put(0, _elf_header())
    put(64, _program_header(PT_LOAD, 5, 0, text_at + text_size, PAGE))
    put(64 + 56, _program_header(PT_LOAD, 6, dynamic_at, end - dynamic_at, PAGE))
    put(64 + 112, _program_header(PT_DYNAMIC, 6, dynamic_at, dynamic_size, 8))
    put(64 + 168, _program_header(PT_GNU_STACK, 6, 0, 0, 16))
    put(hash_at, _hash_table(count))
    put(symbols_at, b"".join(symbols))
    put(strings_at, bytes(names.data))
    put(rela_at, rela)
    put(text_at, bytes(text))
    put(dynamic_at, b"".join(struct.pack("<QQ", *entry) for entry in dynamic))
    if python_module:
        put(data_at, struct.pack("<Q", 1))  # ob_refcnt; m_size stays 0: no per-module state
        put(data_at + 8 * MODULE_DEF_WORDS, module_name)
    return bytes(image)


def _elf_header() -> bytes:
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
