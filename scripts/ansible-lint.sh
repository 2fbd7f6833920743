#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: ansible-lint.sh VENV/bin - ansible-lint, profile production, over the collection and the scenarios.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "$1" && pwd)
tree=$("$here/scripts/collection-tree.sh" "$here/build/lint")
cp -r "$here"/{molecule,.ansible-lint,.yamllint} "$tree/"
# ansible-lint would find an older copy of the collection below $HOME/.ansible.
export HOME=$here/build/lint-home
cd "$tree"
# --offline: nothing is fetched from Galaxy, as the kit has no dependency there.
PATH="$bin:$PATH" ANSIBLE_COLLECTIONS_PATH="$here/build/lint" ansible-lint --offline --profile production --strict
