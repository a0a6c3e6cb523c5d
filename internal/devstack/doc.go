// Package devstack starts the stores that "rollingd dev", "rollingd demo" and the tests run on: a private Postgres and,
// where one is installed, a private Apache CouchDB. Package devstack/couch holds the store that stands in for CouchDB
// where none is installed. Nothing here is for production.
//
// Every server listens on loopback alone, keeps its data in one folder, and ends with this process, also when that is
// killed.
package devstack
