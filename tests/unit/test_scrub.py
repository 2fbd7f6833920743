# SPDX-License-Identifier: Apache-2.0
"""Secrets out of lines; everything else stays, as it is the user's evidence."""

from __future__ import annotations

import pytest

from lemonade_deploy.domain.scrub import scrub

SECRET = "s3cr3tV4lueX9"


@pytest.mark.parametrize(
    "line",
    [
        f"HF_TOKEN=hf_{SECRET}",
        f"token hf_{SECRET}abc is not valid",
        f"Authorization: Bearer {SECRET}",
        f"{{'Authorization': 'Bearer {SECRET}'}}",
        f"curl https://user:{SECRET}@mirror.lan/path",
        f"https://{SECRET}@mirror.lan/path",
        f"https://user:{SECRET}/{SECRET}@mirror.lan/path",
        f"https://user:{SECRET}@{SECRET}@mirror.lan/path",
        f"https://user:/{SECRET}@mirror.lan/",
        f"E: Failed to fetch https://:{SECRET}@mirror.lan/dists/x/InRelease  404",
        f'{{"api_key": "{SECRET}"}}',
        f"--api-key {SECRET} --port 8001",
        f"LEMONADE_API_KEY={SECRET}",
        f"?token={SECRET}&x=1",
        f"password: {SECRET}",
        f"non-default args: {{'api_key': ['{SECRET}']}}",
    ],
)
def test_secrets_are_gone(line: str) -> None:
    assert SECRET not in scrub(line)


@pytest.mark.parametrize(
    "line",
    [
        "libnuma.so.1: cannot open shared object file: No such file or directory",
        "ValueError: max seq len (4096) is larger than the available KV cache memory",
        "max_tokens=200, prompt_tokens: 1234567, token_ids=[1, 2]",
        "KeyError: 'qwen3_coder'",
        "https://huggingface.co/org/model/resolve/main/config.json",
        "http://mirror.lan:8080/pool/@scope/x.tgz",
        "https://mirror.lan/a@b and http://[::1]:8000/v1 by me@home",
        "--tool-call-parser qwen3_coder --tokenizer org/some-tokenizer",
        "The tokenizer of this model: unknown",
        "sk-learn is no secret",
    ],
)
def test_evidence_stays(line: str) -> None:
    assert scrub(line) == line


def test_known_secrets_are_gone_wherever_they_stand() -> None:
    assert scrub("before plainword7 after", ["plainword7", ""]) == "before *** after"
