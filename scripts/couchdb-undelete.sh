#!/usr/bin/env bash
# Brings a database back that was deleted while CouchDB ran with
# [couchdb] enable_database_recovery = true, under a name of its own.
#
#   COUCHDB_URL=http://admin:PASSWORD@127.0.0.1:5984 couchdb-undelete.sh DATA_FOLDER NAME [NEW_NAME]
#
# Run it on the CouchDB node, as a user who may write to DATA_FOLDER, its
# database_dir. The newest deletion of NAME is copied, never moved, so that the
# script can be run again; NEW_NAME is NAME_recovered unless given. That name is
# no business day's, so rollingd never touches it. Under its own name it has the
# creation time that it had: it is the same database. For a single node (n=1).
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

status=$(curl -sS -o /dev/null -w '%{http_code}' "$url/$new")
[ "$status" = 404 ] || stop "GET /$new answers $status: choose another NEW_NAME"

# CouchDB renames the files, one in the folder of each shard, some time after it
# has answered: NAME.CREATED.couch becomes NAME.CREATED.DAY.TIME.deleted.couch.
for _ in {1..50}; do
  latest='' in_place=()
  for file in "$data"/shards/*/"$name".*.couch; do
    stamp=${file##*/"$name".}
    if [[ $stamp =~ ^[0-9]+\.couch$ ]]; then
      in_place+=("$file")
    elif [[ $stamp =~ ^([0-9]+\.[0-9]{8}\.[0-9]{6})\.deleted\.couch$ && ${BASH_REMATCH[1]#*.} > ${latest#*.} ]]; then
      latest=${BASH_REMATCH[1]}
    fi
  done
  [ -z "$latest" ] || [ ${#in_place[@]} -gt 0 ] || break
  sleep 0.1
done
[ ${#in_place[@]} -eq 0 ] || stop "${in_place[0]} is in place: is $name deleted at all?"
[ -n "$latest" ] || stop "no deleted files of $name in $data/shards"
created=${latest%%.*}

node=$(curl -fsS "$url/_membership" | sed -E 's/.*"all_nodes":\["([^"]+)"\].*/\1/')
[[ $node == *@* ]] || stop "more than one node: put the files back by hand on each"

add='' ranges='' nodes=''
for folder in "$data"/shards/*/; do
  range=$(basename "$folder")
  # Sorted by time, and shards are not renamed within the same second. The folders
  # without such a file are of databases with another number of shards.
  files=("$folder$name.$created".*.deleted.couch)
  [ ${#files[@]} -gt 0 ] || continue
  cp --preserve=mode,ownership "${files[-1]}" "$folder$new.$created.couch"
  add+=",[\"add\",\"$range\",\"$node\"]"
  ranges+=",\"$range\""
  nodes+=",\"$range\":[\"$node\"]"
done
# CouchDB keeps the suffix of the files as a list of bytes.
suffix=$(printf '.%s' "$created" | od -An -v -tu1 | tr -s ' \n' ',' | sed 's/^,//; s/,$//')

curl -fsS -o /dev/null -X PUT -H 'Content-Type: application/json' "$url/_node/_local/_dbs/$new" -d \
  "{\"shard_suffix\":[$suffix],\"changelog\":[${add#,}],\"by_node\":{\"$node\":[${ranges#,}]},\"by_range\":{${nodes#,}}}"
curl -fsS "$url/$new"
