# SPDX-License-Identifier: Apache-2.0
"""apt's source files: every form met in the field, and rewriting that touches the version only."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import AMD_LINE, Tree

from lemonade_deploy.domain import apt_formats, apt_sources

DEB822 = """\
# written by the release upgrader
Types: deb
URIs: https://repo.radeon.com/amdgpu/30.30/ubuntu
Suites: noble
# a comment inside
Components: main
Architectures: amd64
Signed-By: /etc/apt/keyrings/rocm.gpg

Enabled: no
Types: deb deb-src
URIs: https://mirror.example/x/amdgpu/30.20.1/ubuntu/
 https://repo.radeon.com/amdgpu/latest/ubuntu
Suites: noble jammy
Components: main
"""


def drivers(path: str, text: str) -> list[apt_formats.Entry]:
    return apt_sources.driver_entries({path: text})


def test_one_line_entry_is_read_whole() -> None:
    (entry,) = drivers("/etc/apt/sources.list.d/amdgpu.list", AMD_LINE.format("30.30"))
    assert entry.signed_by == "/etc/apt/keyrings/rocm.gpg"
    assert (entry.suite, entry.components, entry.architectures) == ("noble", ("main",), ("amd64", "i386"))
    assert (entry.line, entry.enabled, apt_sources.version(entry)) == (1, True, "30.30")


@pytest.mark.parametrize(
    ("line", "version", "enabled"),
    [
        ("deb https://repo.radeon.com/amdgpu/30.30/ubuntu noble main", "30.30", True),
        ("deb [arch=amd64] https://repo.radeon.com/amdgpu/latest/ubuntu/ noble main", "latest", True),
        (
            "  deb\t[ signed-by=/k arch=amd64 ]\thttp://mirror.lan/amdgpu/30.30.2/ubuntu  noble  main  # x",
            "30.30.2",
            True,
        ),
        ("#deb https://repo.radeon.com/amdgpu/7.2/ubuntu noble main", "7.2", False),
        ("# deb-src [signed-by=/k] https://repo.radeon.com/amdgpu/6.4.3/ubuntu noble main", "6.4.3", False),
        ("deb file:///srv/amdgpu/31.20/ubuntu noble main", "31.20", True),
    ],
)
def test_forms_met_in_the_field(line: str, version: str, enabled: bool) -> None:
    (entry,) = drivers("/etc/apt/sources.list", f"# first\n{line}\n")
    assert (apt_sources.version(entry), entry.enabled, entry.line) == (version, enabled, 2)


@pytest.mark.parametrize(
    "line",
    [
        "deb https://repo.radeon.com/amdgpu/7.2/ubuntu noble proprietary",
        "deb https://repo.radeon.com/graphics/7.2/ubuntu noble main",
        "deb https://repo.radeon.com/rocm/apt/7.2 noble main",
        "deb https://repo.radeon.com/amdgpu/30.30/el/9.6 noble main",
        "deb https://example.com/amdgpu-tools/30.30/ubuntu noble main",
        "# see deb https://repo.radeon.com/amdgpu/30.30/ubuntu noble main",
        "debian https://repo.radeon.com/amdgpu/30.30/ubuntu noble main",
    ],
)
def test_other_lines_are_not_the_driver_repository(line: str) -> None:
    assert drivers("/etc/apt/sources.list.d/a.list", line + "\n") == []


def test_deb822_stanzas_with_comments_and_enabled_no() -> None:
    found = drivers("/etc/apt/sources.list.d/amdgpu.sources", DEB822)
    first, *rest = found
    assert (first.enabled, first.line, first.signed_by) == (True, 3, "/etc/apt/keyrings/rocm.gpg")
    assert {(e.type, e.suite, apt_sources.version(e), e.enabled, e.line) for e in rest} == {
        (kind, suite, version, False, line)
        for kind in ("deb", "deb-src")
        for suite in ("noble", "jammy")
        for version, line in (("30.20.1", 12), ("latest", 13))
    }
    assert apt_sources.active(found) == [first]


def test_deb822_key_in_the_stanza() -> None:
    text = (
        "Types: deb\r\nURIs: https://x/amdgpu/31.20/ubuntu\r\nSuites: noble\r\nComponents: main\r\n"
        "Signed-By:\r\n -----BEGIN PGP PUBLIC KEY BLOCK-----\r\n .\r\n mQIN\r\n"
        " -----END PGP PUBLIC KEY BLOCK-----\r\n"
    )
    (entry,) = drivers("/etc/apt/sources.list.d/a.sources", text)
    assert entry.signed_by.splitlines()[1:3] == [".", "mQIN"]


def test_only_files_that_apt_reads(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for name in ("a.list", "b.sources", "c.list.save", "d.sources.distUpgrade", "e.dpkg-old", "f.txt"):
        tree.file(f"/etc/apt/sources.list.d/{name}", AMD_LINE.format("30.30"))
    names = [path.rsplit("/", 1)[1] for path in apt_sources.read_sources(tree.host)]
    assert names == ["a.list", "b.sources"]
    tree.file("/etc/apt/sources.list", "")
    assert "/etc/apt/sources.list" in apt_sources.read_sources(tree.host)
    assert apt_sources.read_sources(Tree(tmp_path / "empty").host) == {}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "/etc/apt/sources.list.d/amdgpu.list",
            "# 30.30 stays\n" + AMD_LINE.format("30.30") + "#deb-src x\n",
        ),
        ("/etc/apt/sources.list.d/amdgpu.sources", DEB822.replace("\n", "\r\n")),
        ("/etc/apt/sources.list.d/a.list", "\ufeff# é \udcff\n" + AMD_LINE.format("30.30").rstrip()),
    ],
)
def test_only_the_version_changes(tmp_path: Path, path: str, text: str) -> None:
    tree = Tree(tmp_path).file(path, text)
    read = apt_sources.read_sources(tree.host)[path]
    entry = next(e for e in drivers(path, read) if apt_sources.version(e) == "30.30")
    assert apt_sources.with_version(read, entry, "31.20") == text.replace("amdgpu/30.30/", "amdgpu/31.20/")


def test_a_foreign_entry_is_refused() -> None:
    (entry,) = drivers("/a.list", AMD_LINE.format("30.30"))
    with pytest.raises(ValueError, match="not this driver repository entry"):
        apt_sources.with_version("# moved\n" + AMD_LINE.format("30.30"), entry, "31.20")


@pytest.mark.parametrize(
    ("value", "enabled"),
    [
        *((word, False) for word in ("no", "No", "false", "WITHOUT", "off", "disable", "Disable", "0", "00")),
        *((word, True) for word in ("yes", "true", "with", "on", "enable", "1", "", "disabled", "none", "2")),
    ],
)
def test_enabled_is_what_apt_takes_it_for(value: str, enabled: bool) -> None:
    text = "Enabled: {}\nTypes: deb\nURIs: https://x/amdgpu/30.30/ubuntu\nSuites: x\nComponents: main\n"
    (entry,) = drivers("/x.sources", text.format(value))
    assert entry.enabled is enabled


LINES = st.one_of(
    st.just(AMD_LINE.format("30.30").rstrip()),
    st.just("# deb https://repo.radeon.com/amdgpu/7.2/ubuntu noble main"),
    st.just("Types: deb"),
    st.just("URIs: https://repo.radeon.com/amdgpu/30.20/ubuntu http://m/amdgpu/30.20/ubuntu/"),
    st.just(" https://repo.radeon.com/amdgpu/latest/ubuntu"),
    st.just("Suites: noble"),
    st.just("Components: main"),
    st.just("Enabled: no"),
    st.just(""),
    st.text(st.characters(exclude_categories=()), max_size=40),
)
TEXTS = st.lists(LINES, max_size=12).flatmap(
    lambda lines: st.sampled_from(["\n", "\r\n"]).map(lambda end: end.join(lines))
)


@given(st.sampled_from(["/a.list", "/a.sources"]), TEXTS)
def test_parse_and_write_back_is_byte_identical(path: str, text: str) -> None:
    entries = apt_formats.parse(path, text)
    for entry in entries:
        assert text[entry.start : entry.end] == entry.uri
    assert apt_formats.rewrite(text, ((e.start, e.end, e.uri) for e in entries)) == text


@given(st.sampled_from(["/a.list", "/a.sources"]), TEXTS)
def test_a_rewrite_touches_nothing_but_the_version(path: str, text: str) -> None:
    for entry in drivers(path, text):
        old = apt_sources.version(entry)
        new = apt_sources.with_version(text, entry, "99.99")
        assert new[: entry.start] == text[: entry.start]
        assert (
            new[entry.start :] == entry.uri.replace(f"/amdgpu/{old}/", "/amdgpu/99.99/") + text[entry.end :]
        )
        again = [e for e in drivers(path, new) if e.start == entry.start]
        assert {apt_sources.version(e) for e in again} == {"99.99"}


def test_suites() -> None:
    assert apt_sources.expected_suite("ubuntu", "24.04") == "noble"
    assert apt_sources.expected_suite("debian", "13") == "noble"
    assert apt_sources.expected_suite("fedora", "43") is None


def test_two_uris_in_one_line_are_named_twice() -> None:
    base = "https://repo.radeon.com/amdgpu/{}/ubuntu"
    uris = f"{base.format('30.30')} {base.format('31.20')}"
    text = f"Types: deb deb-src\nURIs: {uris}\nSuites: noble\nComponents: main\n"
    drivers = apt_sources.active(apt_sources.driver_entries({"/etc/apt/sources.list.d/a.sources": text}))
    assert {entry.uri for entry in apt_sources.duplicates(drivers)} == set(uris.split())
    one = text.replace(uris, base.format("31.20"))
    drivers = apt_sources.active(apt_sources.driver_entries({"/etc/apt/sources.list.d/a.sources": one}))
    assert apt_sources.duplicates(drivers) == []


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ('arch=amd64 signed-by="/etc/apt/keyrings/rocm.gpg"', "/etc/apt/keyrings/rocm.gpg"),
        ('signed-by="/etc/apt/my keys/rocm.gpg" arch=amd64', "/etc/apt/my keys/rocm.gpg"),
        ("signed-by=/a.gpg arch=amd64", "/a.gpg"),
        ('arch=amd64 signed-by="/a.gpg', "/a.gpg"),
    ],
)
def test_quotes_around_an_option_are_no_part_of_it(options: str, key: str) -> None:
    (entry,) = apt_formats.parse_list("/x.list", f"deb [{options}] https://repo.radeon.com/x noble main\n")
    assert (entry.signed_by, entry.architectures) == (key, ("amd64",))
