#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: sanity.sh VENV/bin - ansible-test sanity on a copy of the collection.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$(cd "$1" && pwd)
# ansible-test keeps its virtual environments below $HOME/.ansible: keep them out of the user's.
export HOME=$here/build/sanity-home LC_ALL=C.UTF-8
python=$("$bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# The import test wants a get-pip script from a server that is not needed: the standard
# library's ensurepip does the same. The file's name is ansible-test's.
pip_version=$(sed -n "s/^ *pip='\([0-9.]*\)',$/\1/p" "$("$bin/python" -c 'import ansible_test._internal.python_requirements as m; print(m.__file__)')" | tail -1)
cache=$HOME/.ansible/test/cache
mkdir -p "$cache"
printf 'import ensurepip\nensurepip.bootstrap()\n' > "$cache/get_pip_${pip_version//./_}.py"
# Outside the clone: below it ansible-test would ask git, which ignores build/, and test nothing.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
tree=$("$here/scripts/collection-tree.sh" "$place")
cd "$tree"
PATH="$bin:$PATH" ansible-test sanity --requirements --python "$python" --color no > "$here/build/sanity.log" 2>&1 || {
  grep -vE 'WARNING: (Using locale|Reviewing)|^(Collecting|Downloading|Looking|Processing|Installing|Successfully|  )' "$here/build/sanity.log" >&2
  exit 1
}
echo "ansible-test sanity: $(grep -c 'Running sanity test' "$here/build/sanity.log") tests passed"
