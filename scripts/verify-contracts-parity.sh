#!/usr/bin/env bash
# Verifies that the contracts are the same everywhere: the TypeScript files in
# every consumer's copy, their functions in Go and in TypeScript, the types and
# statuses in Go, TypeScript and SQL, and the queue in TypeScript and SQL.
#
#   verify-contracts-parity.sh [FOLDER...]
#
# FOLDER is a further copy of contracts/*.ts, such as src/contracts in a checkout
# of a device's SDK. Standard output holds one line per difference and nothing
# else; the exit status is 1 when there is one, 2 when the check cannot be made.
# ROLLINGD_PARITY_ROOT names another tree to verify than the script's own.
# Needs go, node 20 and, once, `npm ci` in contracts/.
set -euo pipefail
shopt -s nullglob

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${ROLLINGD_PARITY_ROOT:-$(dirname "$scripts")}
tsc=$root/contracts/node_modules/typescript/bin/tsc

cannot() {
  echo "verify-contracts-parity: $1" >&2
  exit 2
}

[ -d "$root/contracts" ] || cannot "no contracts in $root"
command -v go >/dev/null || cannot "go is not installed"
command -v node >/dev/null || cannot "node is not installed"
[ -f "$tsc" ] || cannot "typescript is not installed: run npm ci in contracts"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# compare_copy FOLDER TITLE: the same .ts files, byte for byte, none missing, none more.
compare_copy() {
  local file name
  for file in "$root"/contracts/*.ts; do
    name=$(basename "$file")
    if [ ! -f "$1/$name" ]; then
      echo "copy: $2/$name is missing"
    elif ! cmp -s "$file" "$1/$name"; then
      echo "copy: $2/$name differs from contracts/$name"
    fi
  done
  for file in "$1"/*.ts; do
    name=$(basename "$file")
    [ -f "$root/contracts/$name" ] || echo "copy: $2/$name is not a contract"
  done
}

# run_vectors SIDE COMMAND...: the mismatches that COMMAND prints. One that fails
# without naming any did not come to a verdict, which is a difference as well.
run_vectors() {
  local side=$1 output status=0
  shift
  output=$("$@" 2>&1) || status=$?
  [ "$status" -eq 0 ] && return
  sed -n "s/^.*mismatch: /vectors: $side: /p" <<<"$output" | grep . ||
    echo "vectors: $side: no verdict: $(grep -m 1 -v '^#' <<<"$output")"
}

go_vectors() {
  cd "$root" && go test -count=1 -run '^TestVectors$' ./contracts
}

node_vectors() {
  CONTRACTS_BUILD=$work/build node --test --test-reporter="$scripts/mismatches.mjs" \
    "$root/contracts/vectors.test.mjs"
}

run_vectors go go_vectors >"$work/go" &

{
  compare_copy "$root/sdk/src/contracts" sdk/src/contracts
  for folder in "$@"; do
    compare_copy "$folder" "${folder%/}"
  done

  mkdir "$work/build"
  echo '{"type": "module"}' >"$work/build/package.json"
  (cd "$root" && node "$tsc" -p contracts --pretty false --outDir "$work/build") |
    sed -n '/^[^ ]/s/^/typescript: /p' || true

  run_vectors typescript node_vectors
  node "$scripts/contract-sets.mjs" "$root" "$work/build"
} >"$work/rest"

wait
cat "$work/rest" "$work/go"
[ ! -s "$work/rest" ] && [ ! -s "$work/go" ]
