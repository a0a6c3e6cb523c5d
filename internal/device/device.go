// Package device is the device plane: tokens that name a till, a view of the
// ledger in memory, and the proxy that leads a till to the databases of its own
// restaurant and to nothing else.
package device
