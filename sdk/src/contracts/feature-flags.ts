// The flags of a company as devices hold them. Devices cache them raw and
// derive behaviour only through the accessors, which know both shapes and read
// anything else as off.

/** What the server sends. */
export interface CanonicalFlags {
  rollingDbEnabled: boolean;
  /** Set by the server once the cutover has been made. */
  rollingDbDeviceRouted: boolean;
  rollingDbDropEnabled: boolean;
}

/** What a device may still hold from before the canonical shape. */
export interface LegacyFlags {
  rollingDb: boolean;
  rollingDbDrop: boolean;
}

const CANONICAL_KEYS = ['rollingDbEnabled', 'rollingDbDeviceRouted', 'rollingDbDropEnabled'];

/** Whether the device routes to core and day databases. */
export function isRollingDb(flags: unknown): boolean {
  return isCanonical(flags)
    ? isOn(flags, 'rollingDbEnabled') && isOn(flags, 'rollingDbDeviceRouted')
    : isOn(flags, 'rollingDb');
}

/** Whether the physical drop of day databases is enabled; needs isRollingDb. */
export function isRollingDbDrop(flags: unknown): boolean {
  if (!isRollingDb(flags)) return false;
  return isOn(flags, isCanonical(flags) ? 'rollingDbDropEnabled' : 'rollingDbDrop');
}

/**
 * One canonical key makes the whole object canonical, so that a leftover legacy
 * key never switches a device that the server has not routed.
 */
function isCanonical(flags: unknown): boolean {
  return CANONICAL_KEYS.some((key) => isOwn(flags, key));
}

/** Only the boolean true is on: a string 'false' from a damaged cache is truthy. */
function isOn(flags: unknown, key: string): boolean {
  return isOwn(flags, key) && (flags as Record<string, unknown>)[key] === true;
}

function isOwn(flags: unknown, key: string): boolean {
  return flags !== null && flags !== undefined && Object.hasOwn(flags as object, key);
}
