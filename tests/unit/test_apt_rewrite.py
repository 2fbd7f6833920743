# SPDX-License-Identifier: Apache-2.0
"""A switch of AMD's sources, byte by byte: against files whose right outcome is known piece by piece."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from trees import Tree

from lemonade_deploy.domain import driver_sources
from lemonade_deploy.domain.host import Host

WANTED = "31.20"
REQUEST = driver_sources.Request(WANTED, False, "0" * 40, "6.14.0-37-generic")
OLD = st.sampled_from(["30.30", "6.4.3", "30.30.2", "7.2"])
HOSTS = st.sampled_from(
    ["https://repo.radeon.com", "http://mirror.lan/pub/amd", "https://u:p@mirror.lan:8443/x"]
)
BLANK = st.sampled_from([" ", "\t", " \t  "])
END = st.sampled_from(["\n", "\r\n"])
Piece = tuple[str, str]  # before, after


@st.composite
def switched_line(draw: st.DrawFn) -> Piece:
    """An enabled entry of the driver's repository, in any spacing."""
    gap = draw(BLANK)
    kind = draw(st.sampled_from(["deb", "deb-src"]))
    options = draw(
        st.sampled_from(["", "[arch=amd64]", "[ arch=amd64,i386 signed-by=/etc/apt/keyrings/rocm.gpg ]"])
    )
    tail = draw(st.sampled_from(["", "/"])) + gap + "noble" + gap
    tail += draw(st.sampled_from(["main", "main proprietary", "proprietary\tmain", "main # 30.30 é"]))
    head = (
        f"{draw(st.sampled_from(['', ' ']))}{kind}{gap}{options}{gap if options else ''}{draw(HOSTS)}/amdgpu/"
    )
    return f"{head}{draw(OLD)}/ubuntu{tail}", f"{head}{WANTED}/ubuntu{tail}"


KEPT = st.one_of(
    st.sampled_from(
        [
            "",
            "# deb https://repo.radeon.com/amdgpu/30.30/ubuntu noble main",
            "#deb-src [arch=amd64] https://repo.radeon.com/amdgpu/30.30/ubuntu noble main",
            " ## deb https://repo.radeon.com/amdgpu/30.30/ubuntu noble main",
            "deb https://repo.radeon.com/amdgpu/7.2/ubuntu noble proprietary",
            "deb https://repo.radeon.com/graphics/7.2/ubuntu noble main",
            "deb [signed-by=/k.gpg] https://repo.radeon.com/rocm/apt/7.2 noble main",
            "deb https://repo.radeon.com/amdgpu/31.40.1/ubuntu noble main",
            "deb https://repo.radeon.com/amdgpu/latest/ubuntu noble main",
            "deb http://archive.ubuntu.com/ubuntu noble main universe",
            "deb cdrom:[Ubuntu 24.04]/ noble main",
            "deb https://example.org/amdgpu/30.30/debian noble main",
            "debx https://repo.radeon.com/amdgpu/30.30/ubuntu noble main",
        ]
    ),
    st.binary(max_size=20).map(
        lambda data: "# " + data.replace(b"\n", b"").replace(b"\r", b"").decode("utf-8", "surrogateescape")
    ),
).map(lambda line: (line, line))


@st.composite
def one_line_file(draw: st.DrawFn) -> Piece:
    pieces = draw(st.lists(st.one_of(switched_line(), KEPT), min_size=1, max_size=8))
    ends = [draw(END) for _piece in pieces]
    ends[-1] = draw(st.sampled_from([ends[-1], ""]))
    before, after = ("".join(piece[n] + end for piece, end in zip(pieces, ends, strict=True)) for n in (0, 1))
    return before, after


@st.composite
def stanza(draw: st.DrawFn) -> list[Piece]:
    """Lines of a deb822 stanza; its URIs may stand on continuation lines, with comments between."""
    enabled = draw(st.sampled_from([None, "yes", "no"]))
    main = draw(st.booleans())
    path = draw(st.sampled_from(["amdgpu/{}/ubuntu", "amdgpu/{}/ubuntu/"]))
    address, old = draw(HOSTS), draw(OLD)
    uri = f"{address}/{path.format(old)}"
    new = f"{address}/{path.format(WANTED)}" if main and enabled != "no" else uri
    other = "https://repo.radeon.com/graphics/7.2/ubuntu"
    form = draw(
        st.sampled_from(["URIs: {}", "uris:\t{}", "URIs:\n {}", "URIs: {o}\n# 30.30\n\t{}", "URIs: {} {o}"])
    )
    fields: list[list[Piece]] = [
        [(line, line.replace(uri, new)) for line in form.format(uri, o=other).split("\n")],
        [("Types: deb deb-src", "Types: deb deb-src")],
        [("Suites: noble", "Suites: noble")],
        [("Components: main", "Components: main")] if main else [("Components: proprietary",) * 2],
        [("X-Note: é ☃ 30.30",) * 2, ("# amdgpu/30.30/ubuntu main",) * 2],
    ]
    if enabled is not None:
        fields.append([(f"Enabled: {enabled}",) * 2])
    return [piece for field in draw(st.permutations(fields)) for piece in field]


@st.composite
def deb822_file(draw: st.DrawFn) -> Piece:
    end = draw(END)
    stanzas = draw(st.lists(stanza(), min_size=1, max_size=4))
    lines: list[Piece] = [("# odd \udcff first",) * 2, ("",) * 2]
    for found in stanzas:
        lines += [*found, ("",) * 2]
    close = draw(st.sampled_from(["", end]))
    before, after = (end.join(line[n] for line in lines[:-1]) + close for n in (0, 1))
    return before, after


def outcome(path: str, before: str) -> bytes:
    """The bytes of *path* after the switch, on a real disk."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder)).distribution().file(path, before)
        tree.file(
            "/etc/apt/sources.list.d/zz.list",
            f"deb https://repo.radeon.com/amdgpu/{WANTED}/ubuntu noble main\n",
        )
        host: Host = tree.host
        for changed, text in driver_sources.plan(host, REQUEST).texts.items():
            host.write(changed, text)
        data = host.read_bytes(path)
        assert data is not None
        assert path not in driver_sources.plan(host, REQUEST).texts, "a second look finds nothing"
        return data


@settings(deadline=None)
@given(one_line_file())
def test_one_line_files(file: Piece) -> None:
    before, after = file
    assert outcome("/etc/apt/sources.list.d/amdgpu.list", before) == after.encode("utf-8", "surrogateescape")


@settings(deadline=None)
@given(deb822_file())
def test_deb822_files(file: Piece) -> None:
    before, after = file
    assert outcome("/etc/apt/sources.list.d/amdgpu.sources", before) == after.encode(
        "utf-8", "surrogateescape"
    )
