package daydb

// Role is the CouchDB role that opens this restaurant's databases, and no other
// restaurant's: the ids hold neither a dot nor the comma that separates roles
// in a proxy's header.
func (r Restaurant) Role() string {
	return "restaurant." + r.CompanyID + "." + r.RestaurantID
}
