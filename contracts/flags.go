package contracts

import "encoding/json"

// DeviceFlags is the canonical shape in which devices receive their company's
// flags. Devices that were cached before it hold {rollingDb, rollingDbDrop}.
type DeviceFlags struct {
	RollingDbEnabled      bool `json:"rollingDbEnabled"`
	RollingDbDeviceRouted bool `json:"rollingDbDeviceRouted"`
	RollingDbDropEnabled  bool `json:"rollingDbDropEnabled"`
}

// IsRollingDb reports whether devices route to core and day databases: the
// model is enabled and the cutover has been made.
func (f DeviceFlags) IsRollingDb() bool {
	return f.RollingDbEnabled && f.RollingDbDeviceRouted
}

// IsRollingDbDrop reports whether the physical drop is enabled. It needs
// IsRollingDb too.
func (f DeviceFlags) IsRollingDbDrop() bool {
	return f.IsRollingDb() && f.RollingDbDropEnabled
}

// IsRollingDb is DeviceFlags.IsRollingDb over flags as JSON in either shape.
// Anything that is not a well-formed set of flags means off.
func IsRollingDb(raw []byte) bool {
	return parseFlags(raw).IsRollingDb()
}

// IsRollingDbDrop is DeviceFlags.IsRollingDbDrop over flags as JSON in either
// shape. Anything that is not a well-formed set of flags means off.
func IsRollingDbDrop(raw []byte) bool {
	return parseFlags(raw).IsRollingDbDrop()
}

// parseFlags reads both shapes. One canonical key makes the whole object
// canonical, so that a leftover legacy key never switches a device that the
// server has not routed. It reads a map because encoding/json matches the keys
// of a struct without regard to case, and a device does not.
func parseFlags(raw []byte) DeviceFlags {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return DeviceFlags{}
	}
	on := func(key string) bool { return string(fields[key]) == "true" }
	for _, key := range []string{"rollingDbEnabled", "rollingDbDeviceRouted", "rollingDbDropEnabled"} {
		if _, canonical := fields[key]; canonical {
			return DeviceFlags{
				RollingDbEnabled:      on("rollingDbEnabled"),
				RollingDbDeviceRouted: on("rollingDbDeviceRouted"),
				RollingDbDropEnabled:  on("rollingDbDropEnabled"),
			}
		}
	}
	return DeviceFlags{
		RollingDbEnabled:      on("rollingDb"),
		RollingDbDeviceRouted: on("rollingDb"),
		RollingDbDropEnabled:  on("rollingDbDrop"),
	}
}
