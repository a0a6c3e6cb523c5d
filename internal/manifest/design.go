package manifest

// DesignID is the design document of core that protects the manifest.
const DesignID = "_design/rollingd"

// Validation lets through every write but those to day_manifest: only a server
// administrator writes it, and only under a generation that is not older than
// the one it replaces. A plain DELETE names no generation and is refused as
// well; a deletion that names one settles a conflict. It is ECMAScript 5, for
// every engine that CouchDB has had.
const Validation = `function (newDoc, oldDoc, userCtx) {
  if (newDoc._id !== 'day_manifest') { return; }
  if (userCtx.roles.indexOf('_admin') === -1) {
    throw ({ forbidden: 'day_manifest is written by the server alone' });
  }
  if (typeof newDoc.generation !== 'number') {
    throw ({ forbidden: 'day_manifest needs a generation' });
  }
  if (oldDoc && typeof oldDoc.generation === 'number' && newDoc.generation < oldDoc.generation) {
    throw ({ forbidden: 'day_manifest has a newer generation' });
  }
}`

// repairValidation is Validation without the order of generations. It is in
// place only while a generation that nobody was ever given is being replaced.
const repairValidation = `function (newDoc, oldDoc, userCtx) {
  if (newDoc._id === 'day_manifest' && userCtx.roles.indexOf('_admin') === -1) {
    throw ({ forbidden: 'day_manifest is written by the server alone' });
  }
}`
