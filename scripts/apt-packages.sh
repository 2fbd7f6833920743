#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install what the lab needs from apt; says first what is missing. Does nothing when all is there.
set -euo pipefail
list=$(dirname "$0")/apt-packages.txt
missing=()
while read -r package; do
  [[ -z $package || $package == \#* ]] && continue
  [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] || missing+=("$package")
done < "$list"
((${#missing[@]})) || exit 0
if [[ $(id -u) != 0 ]]; then
  echo "The lab needs these packages: sudo apt-get install ${missing[*]}" >&2
  exit 1
fi
echo "== installing from apt: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
