#!/usr/bin/env bash
# Runs a command with ROLLINGD_TEST_COUCHDB_URL set: as it is, or else to a private
# node of the Apache CouchDB that is installed, which ends with the command.
#
#   with-couchdb.sh COMMAND [ARGUMENT...]
#
# The node is looked for under COUCHDB_HOME (/opt/couchdb), listens on a free port
# of loopback alone, opens no port for clustering, and keeps its data in a folder
# that is removed at the end. Exits 2 when there is no CouchDB.
set -euo pipefail

cannot() {
  echo "with-couchdb: $1" >&2
  exit 2
}

[ $# -gt 0 ] || cannot "name a command"
[ -z "${ROLLINGD_TEST_COUCHDB_URL:-}" ] || exec "$@"

home=${COUCHDB_HOME:-/opt/couchdb}
[ -x "$home/bin/couchdb" ] ||
  cannot "no CouchDB in $home: install one, or set ROLLINGD_TEST_COUCHDB_URL=http://admin:PASSWORD@HOST:5984"

work=$(mktemp -d)
node=
finish() {
  if [ -n "$node" ]; then
    kill "$node" 2>/dev/null || true
    wait "$node" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

port=
for _ in {1..50}; do
  candidate=$((20000 + RANDOM % 12000))
  if ! (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null; then
    port=$candidate
    break
  fi
done
[ -n "$port" ] || cannot "no free port"

# Soft deletion, proxy authentication and room for many open databases, as in production; cheap
# password hashing and one shard per database, since nothing here is worth guarding or spreading.
cat >"$work/local.ini" <<INI
[couchdb]
single_node = true
database_dir = $work/data
view_index_dir = $work/data
max_dbs_open = 5000
enable_database_recovery = true
[cluster]
q = 1
n = 1
[chttpd]
port = $port
bind_address = 127.0.0.1
authentication_handlers = {chttpd_auth, cookie_authentication_handler}, {chttpd_auth, proxy_authentication_handler}, {chttpd_auth, default_authentication_handler}
[chttpd_auth]
secret = proxysecret
proxy_use_secret = true
iterations = 10
min_iterations = 1
[smoosh]
state_dir = $work/data
[log]
writer = file
file = $work/couchdb.log
level = warning
[admins]
admin = secret
INI
sed -E '/^-(name|setcookie|start_epmd|dist_listen) /d' "$home/etc/vm.args" >"$work/vm.args"
cat >>"$work/vm.args" <<ARGS
-name couchdb@127.0.0.1
-setcookie rollingd-test
-start_epmd false
-dist_listen false
ARGS

COUCHDB_ARGS_FILE=$work/vm.args COUCHDB_INI_FILES="$home/etc/default.ini $work/local.ini" HOME=$work \
  "$home/bin/couchdb" </dev/null >"$work/stdout" 2>&1 &
node=$!

# The node answers a moment before it has made its own databases.
url=http://admin:secret@127.0.0.1:$port
for _ in {1..300}; do
  kill -0 "$node" 2>/dev/null || cannot "the node ended: $(tail -n 3 "$work/stdout")"
  if curl -fsS "$url/_up" "$url/_users" "$url/_replicator" >/dev/null 2>&1; then
    ROLLINGD_TEST_COUCHDB_URL=$url "$@"
    exit
  fi
  sleep 0.1
done
cannot "the node did not answer within 30 seconds"
