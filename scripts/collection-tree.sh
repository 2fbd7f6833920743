#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: collection-tree.sh DIR - copy the collection to DIR/ansible_collections/lemonade/deploy, as
# ansible-lint and ansible-test want it, and print that folder.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
out=$1/ansible_collections/lemonade/deploy
rm -rf "$out"
mkdir -p "$out/tests"
cp -r "$here"/{playbooks,roles,plugins,meta,galaxy.yml,README.md,LICENSE,CHANGELOG.md} "$out/"
cp -r "$here/tests/sanity" "$out/tests/"
find "$out" -name __pycache__ -prune -exec rm -rf {} +
echo "$out"
