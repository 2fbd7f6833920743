# SPDX-License-Identifier: Apache-2.0
"""A mainline version that is not to be had: what is named instead could really be taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mainline_site import STRIX, Signer, Site, box, debs, take, usual
from nasty import Nasty

from lemonade_deploy.domain.mainline import Unusable

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("dpkg-deb", "gpg", "gpgv")),
    reason="needs dpkg-deb, gpg and gpgv",
)


def refused(tmp_path: Path, site: Site, url: str, version: str) -> str:
    with pytest.raises(Unusable) as told:
        take(box(tmp_path), site, url, STRIX._replace(version=version))
    return str(told.value)


def test_what_failed_to_build_or_does_not_suit_is_not_named(
    tmp_path: Path, server: Nasty, signer: Signer
) -> None:
    """6.18.37 failed, 6.18.38 lacks its modules, 6.17.9 is too old for the fix."""
    files = debs("6.18.38")
    partly = {name: data for name, data in files.items() if "modules" not in name}
    site = usual(signer).version("6.18.38", partly)
    url = site.serve(server)
    said = refused(tmp_path, site, url, "6.18.99")
    assert said.endswith("has not 6.18.99; the newest there that suit this host are 6.18.36, 6.18.20")
    said = refused(tmp_path, site, url, "6.18.37")
    assert "6.18.37: the amd64 build of v6.18.37 has not succeeded" in said
    assert said.endswith("that suit this host are 6.18.36, 6.18.20")


def test_where_nothing_suits_that_is_said(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    site = Site(signer).version("6.17.9").failed("6.18.37")
    url = site.serve(server)
    assert refused(tmp_path, site, url, "6.18.99").endswith("none of its newest builds suits this host")
    site = Site(signer).version("6.17.9")
    said = refused(tmp_path, site, site.serve(server), "")
    assert "has not a stable version that suits; its newest is 6.17.9" in said


def test_a_signature_that_is_wrong_hides_no_answer(tmp_path: Path, server: Nasty, signer: Signer) -> None:
    site = usual(signer)
    url = site.serve(server)
    server.files["/mainline/v6.18.36/amd64/CHECKSUMS.gpg"] = b"x"
    said = refused(tmp_path, site, url, "6.18.99")
    assert "has not 6.18.99" in said and "could not be looked at" in said
