#!/usr/bin/env bash
# Brings a database back that was deleted while CouchDB ran with
# [couchdb] enable_database_recovery = true, under a name of its own.
#
#   COUCHDB_URL=http://admin:PASSWORD@127.0.0.1:5984 couchdb-undelete.sh DATA_FOLDER NAME [NEW_NAME]
#
# Run it on the CouchDB node, as a user who may write to DATA_FOLDER, its
# database_dir. The newest deletion of NAME is copied, never moved, so that the
# script can be run again; NEW_NAME is NAME_recovered unless given. That name is
# no business day's, so rollingd never touches it. For a single node (n=1).
# Needs bash, curl and od.
set -euo pipefail
shopt -s nullglob

stop() {
  echo "couchdb-undelete: $1" >&2
  exit 1
}

[ $# -ge 2 ] || stop "usage: couchdb-undelete.sh DATA_FOLDER NAME [NEW_NAME]"
data=$1 name=$2 new=${3:-$2_recovered}
url=${COUCHDB_URL:?is not set: http://admin:PASSWORD@127.0.0.1:5984}

# Files are named NAME.CREATED.DAY.TIME.deleted.couch, one in the folder of each shard.
latest=
for file in "$data"/shards/*/"$name".*.deleted.couch; do
  stamp=${file##*/"$name".}
  stamp=${stamp%.deleted.couch}
  [[ $stamp =~ ^[0-9]+\.[0-9]{8}\.[0-9]{6}$ ]] || continue
  [[ ${stamp#*.} > ${latest#*.} ]] && latest=$stamp
done
[ -n "$latest" ] || stop "no deleted files of $name in $data/shards"
created=${latest%%.*}

status=$(curl -sS -o /dev/null -w '%{http_code}' "$url/$new")
[ "$status" = 404 ] || stop "GET /$new answers $status: choose another NEW_NAME"
node=$(curl -fsS "$url/_membership" | sed -E 's/.*"all_nodes":\["([^"]+)"\].*/\1/')
[[ $node == *@* ]] || stop "more than one node: put the files back by hand on each"

add='' ranges='' nodes=''
for folder in "$data"/shards/*/; do
  range=$(basename "$folder")
  file=$folder$name.$latest.deleted.couch
  [ -f "$file" ] || continue
  cp --preserve=mode,ownership "$file" "$folder$new.$created.couch"
  add+=",[\"add\",\"$range\",\"$node\"]"
  ranges+=",\"$range\""
  nodes+=",\"$range\":[\"$node\"]"
done
# CouchDB keeps the suffix of the files as a list of bytes.
suffix=$(printf '.%s' "$created" | od -An -v -tu1 | tr -s ' \n' ',' | sed 's/^,//; s/,$//')

curl -fsS -o /dev/null -X PUT -H 'Content-Type: application/json' "$url/_node/_local/_dbs/$new" -d \
  "{\"shard_suffix\":[$suffix],\"changelog\":[${add#,}],\"by_node\":{\"$node\":[${ranges#,}]},\"by_range\":{${nodes#,}}}"
curl -fsS "$url/$new"
