# SPDX-License-Identifier: Apache-2.0
"""Stub kernel modules: real ELF relocatables without code.

depmod, modinfo, dracut-install and dkms read them like any module; the kernel would not load
them. What the simulated firmware needs to know about a driver stands in the same ``.modinfo``
section under ``lab_*`` keys: ``lab_cwsr`` is what KFD would export with that driver (``none`` no
CWSR lines, ``old`` lines with the old VGPR size, ``fixed`` the formula's values) and ``lab_gfx``
the GPU targets that the driver knows.
"""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
CWSR_KINDS = ("none", "old", "fixed")

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_STRTAB = 1, 2, 3
_SHF_ALLOC = 2
_STB_GLOBAL = 1 << 4


def vermagic(release: str) -> str:
    """The vermagic text of an Ubuntu kernel *release* (it ends with a space, as theirs does)."""
    return f"{release} SMP preempt mod_unload modversions "


def srcversion(*seed: str) -> str:
    """A stable stand-in for a module's srcversion: 23 upper-case hexadecimal digits."""
    return hashlib.sha256("\0".join(seed).encode()).hexdigest()[:23].upper()


def module_bytes(
    *,
    name: str,
    version: str | None,
    srcversion: str,
    vermagic: str,
    exports: Sequence[str] = (),
    imports: Sequence[str] = (),
    aliases: Sequence[str] = (),
    parms: Mapping[str, str] | None = None,
    **lab_fields: str,
) -> bytes:
    """An ELF64 x86-64 relocatable with the given ``.modinfo``.

    ``version`` None leaves the key away, as Ubuntu's in-tree amdgpu does. ``exports`` and
    ``imports`` are symbol names, from which depmod finds what depends on what; ``parms`` maps a
    parameter to its type. Raises ValueError for a field that is no ``lab_*`` key or for an
    unknown ``lab_cwsr``.
    """
    for key in lab_fields:
        if not key.startswith("lab_"):
            raise ValueError(f"{key}: only lab_* fields may be added to a stub module")
    if lab_fields.get("lab_cwsr", "none") not in CWSR_KINDS:
        raise ValueError(f"lab_cwsr={lab_fields['lab_cwsr']}: expected one of {', '.join(CWSR_KINDS)}")
    fields: list[tuple[str, str]] = [] if version is None else [("version", version)]
    fields += [("license", "GPL"), ("description", "Simulated module without code"), *lab_fields.items()]
    fields += [("srcversion", srcversion), *(("alias", alias) for alias in aliases), ("depends", "")]
    fields += [("retpoline", "Y"), ("name", name), ("vermagic", vermagic)]
    for parm, kind in (parms or {}).items():
        fields += [("parm", f"{parm}:simulated"), ("parmtype", f"{parm}:{kind}")]
    modinfo = b"".join(f"{key}={value}\0".encode() for key, value in fields)
    return _relocatable(modinfo, exports, imports)


def write_module(
    path: Path,
    *,
    name: str,
    version: str | None,
    srcversion: str,
    vermagic: str,
    exports: Sequence[str] = (),
    imports: Sequence[str] = (),
    aliases: Sequence[str] = (),
    parms: Mapping[str, str] | None = None,
    **lab_fields: str,
) -> None:
    """Write :func:`module_bytes` to *path*; a name that ends in ``.zst`` is packed (see there)."""
    data = module_bytes(
        name=name,
        version=version,
        srcversion=srcversion,
        vermagic=vermagic,
        exports=exports,
        imports=imports,
        aliases=aliases,
        parms=parms,
        **lab_fields,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstd_stored(data) if path.suffix == ".zst" else data)


def read_modinfo(data: bytes) -> dict[str, str]:
    """The ``.modinfo`` fields of a module (plain or zstd); a repeated key's values are joined by \\n.

    Raises ValueError where *data* is no ELF64 relocatable with a ``.modinfo`` section.
    """
    fields: dict[str, str] = {}
    for item in _section(unpack(data), b".modinfo").split(b"\0"):
        key, equals, value = item.decode(errors="replace").partition("=")
        if equals:
            fields[key] = f"{fields[key]}\n{value}" if key in fields else value
    return fields


def unpack(data: bytes) -> bytes:
    """*data* without its zstd compression, if it has one.

    A frame of stored blocks is read here; a really compressed one (dkms packs with zstd) by the
    program ``zstd``. Raises ValueError where that is missing or fails.
    """
    if not data.startswith(ZSTD_MAGIC):
        return data
    stored = _unstored(data)
    if stored is not None:
        return stored
    program = shutil.which("zstd")
    if program is None:
        raise ValueError("a module packed with zstd needs the program zstd on this machine")
    done = subprocess.run([program, "-dcq"], input=data, capture_output=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"zstd cannot unpack the module: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def zstd_stored(data: bytes) -> bytes:
    """A valid zstd frame that stores *data* unpacked (RFC 8878 raw blocks): needs no library."""
    # Frame header descriptor 0xA0: single segment, 4-byte content size, no checksum.
    frame = ZSTD_MAGIC + b"\xa0" + struct.pack("<I", len(data))
    chunks = [data[start : start + 65536] for start in range(0, len(data), 65536)] or [b""]
    for number, chunk in enumerate(chunks, 1):
        header = len(chunk) << 3 | (number == len(chunks))
        frame += header.to_bytes(3, "little") + chunk
    return frame


def _unstored(data: bytes) -> bytes | None:
    """Undo :func:`zstd_stored`; None for a frame of another form."""
    if data[4:5] != b"\xa0":
        return None
    position, content = 9, b""
    while True:
        header = int.from_bytes(data[position : position + 3], "little")
        if len(data) < position + 3 or header >> 1 & 3:
            return None
        size = header >> 3
        content += data[position + 3 : position + 3 + size]
        position += 3 + size
        if header & 1:
            return content


def _relocatable(modinfo: bytes, exports: Sequence[str], imports: Sequence[str]) -> bytes:
    strings, symbols = b"\0", _SYM.pack(0, 0, 0, 0, 0, 0)
    for symbol in imports:
        symbols += _SYM.pack(len(strings), _STB_GLOBAL, 0, 0, 0, 0)  # section 0 = undefined
        strings += symbol.encode() + b"\0"
    sections: list[tuple[bytes, int, int, bytes, int, int, int]] = [
        # name, type, flags, content, link, info, entry size
        (b".modinfo", _SHT_PROGBITS, _SHF_ALLOC, modinfo, 0, 0, 0),
        (b"__ksymtab_strings", _SHT_PROGBITS, _SHF_ALLOC, _zero_joined(exports), 0, 0, 0),
        (b".symtab", _SHT_SYMTAB, 0, symbols, 4, 1, _SYM.size),
        (b".strtab", _SHT_STRTAB, 0, strings, 0, 0, 0),
    ]
    names = b"\0" + b"".join(name + b"\0" for name, *_ in sections) + b".shstrtab\0"
    sections.append((b".shstrtab", _SHT_STRTAB, 0, names, 0, 0, 0))
    body, headers = b"", _SHDR.pack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    for name, kind, flags, content, link, info, entry in sections:
        body += b"\0" * (-len(body) % 8)
        headers += _SHDR.pack(
            names.index(b"\0" + name + b"\0") + 1,
            kind,
            flags,
            0,
            _EHDR.size + len(body),
            len(content),
            link,
            info,
            8,
            entry,
        )
        body += content
    body += b"\0" * (-len(body) % 8)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    table = _EHDR.size + len(body)
    count = len(sections) + 1
    header = _EHDR.pack(ident, 1, 62, 1, 0, 0, table, 0, _EHDR.size, 0, 0, _SHDR.size, count, count - 1)
    return header + body + headers


def _zero_joined(names: Sequence[str]) -> bytes:
    return b"".join(name.encode() + b"\0" for name in names)


def _section(elf: bytes, wanted: bytes) -> bytes:
    if len(elf) < _EHDR.size or elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    head = _EHDR.unpack_from(elf)
    table, count, names_at = head[6], head[12], head[13]
    try:
        rows = [_SHDR.unpack_from(elf, table + number * _SHDR.size) for number in range(count)]
        names = elf[rows[names_at][4] :][: rows[names_at][5]]
    except (struct.error, IndexError) as error:
        raise ValueError(f"a damaged ELF section table: {error}") from error
    for row in rows:
        if names[row[0] : names.find(b"\0", row[0])] == wanted:
            return bytes(elf[row[4] : row[4] + row[5]])
    raise ValueError(f"no {wanted.decode()} section")
