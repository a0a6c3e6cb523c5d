package daydb

// Role is the CouchDB role of the restaurant's devices, the only one that its
// databases admit. Ids hold neither comma nor slash, so the role survives the
// comma-separated header of proxy authentication and names one restaurant only.
func (r Restaurant) Role() string { return "restaurant:" + r.CompanyID + "/" + r.RestaurantID }
