// Names of the databases of a restaurant:
//   core:   ${env}_${companyId}_${restaurantId}_core
//   daily:  ${env}_${companyId}_${restaurantId}_daily_${YYYYMMDD}
//   legacy: tables-${env}
// The underscore is the separator, so ids and environments may not hold one:
// otherwise two restaurants could share a database.

/** What a physical name or a logical suffix stands for. */
export type DbKind = 'core' | 'daily' | 'legacy';

/** A logical suffix, read. `businessDay` is YYYYMMDD for a daily, else null. */
export interface DbSuffix {
  kind: DbKind;
  businessDay: string | null;
}

/** A physical name, read. `businessDay` is YYYYMMDD for a daily, else null. */
export interface DbName {
  env: string;
  companyId: string;
  restaurantId: string;
  kind: 'core' | 'daily';
  businessDay: string | null;
}

/** The logical suffixes that do not depend on a day. */
export const CORE_SUFFIX = 'core';
export const LEGACY_SUFFIX = 'legacy';

const DAILY_PREFIX = 'daily_';
const ID = /^[a-z0-9-]{1,64}$/;
const ENV = /^[a-z][a-z0-9-]{0,31}$/;
const DAY = /^([0-9]{4})([0-9]{2})([0-9]{2})$/;

/** Whether this can name a company or a restaurant: `[a-z0-9-]{1,64}`. */
export function isId(id: unknown): id is string {
  return typeof id === 'string' && ID.test(id);
}

/** Whether this can prefix an environment's names: `[a-z][a-z0-9-]{0,31}`. */
export function isEnv(env: unknown): env is string {
  return typeof env === 'string' && ENV.test(env);
}

/**
 * Whether this is a real civil date as YYYYMMDD, 00010101 to 99991231. Leap
 * years are computed here: `Date` reads years below 100 as 19xx.
 */
export function isBusinessDay(day: unknown): day is string {
  const match = typeof day === 'string' ? DAY.exec(day) : null;
  if (match === null) return false;
  const [year, month, dayOfMonth] = match.slice(1).map(Number) as [number, number, number];
  if (year < 1 || month < 1 || month > 12 || dayOfMonth < 1) return false;
  return dayOfMonth <= daysIn(year, month);
}

function daysIn(year: number, month: number): number {
  if (month === 2) {
    return year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0) ? 29 : 28;
  }
  return month === 4 || month === 6 || month === 9 || month === 11 ? 30 : 31;
}

/** Composes the core database's name, or null when a part is out of form. */
export function coreDbName(env: string, companyId: string, restaurantId: string): string | null {
  if (!isEnv(env) || !isId(companyId) || !isId(restaurantId)) return null;
  return `${env}_${companyId}_${restaurantId}_${CORE_SUFFIX}`;
}

/** Composes a day database's name, or null when a part is out of form. */
export function dailyDbName(
  env: string,
  companyId: string,
  restaurantId: string,
  businessDay: string,
): string | null {
  const suffix = dailySuffix(businessDay);
  if (suffix === null || !isEnv(env) || !isId(companyId) || !isId(restaurantId)) return null;
  return `${env}_${companyId}_${restaurantId}_${suffix}`;
}

/** Composes the name of an environment's single database. */
export function legacyDbName(env: string): string {
  return `tables-${env}`;
}

/**
 * Reads a physical name: exactly those that `coreDbName` and `dailyDbName`
 * compose, else null. A name that does not parse is never dropped.
 */
export function parseDbName(name: unknown): DbName | null {
  if (typeof name !== 'string') return null;
  const [env, companyId, restaurantId, ...rest] = name.split('_');
  if (!isEnv(env) || !isId(companyId) || !isId(restaurantId)) return null;
  const suffix = parseSuffix(rest.join('_'));
  if (suffix === null || suffix.kind === 'legacy') return null;
  return { env, companyId, restaurantId, kind: suffix.kind, businessDay: suffix.businessDay };
}

/** Composes the logical suffix `daily_${YYYYMMDD}`, or null for a day that is none. */
export function dailySuffix(businessDay: string): string | null {
  return isBusinessDay(businessDay) ? DAILY_PREFIX + businessDay : null;
}

/** Reads a logical suffix (`core`, `legacy`, `daily_${YYYYMMDD}`), else null. */
export function parseSuffix(suffix: unknown): DbSuffix | null {
  if (suffix === CORE_SUFFIX) return { kind: 'core', businessDay: null };
  if (suffix === LEGACY_SUFFIX) return { kind: 'legacy', businessDay: null };
  if (typeof suffix !== 'string' || !suffix.startsWith(DAILY_PREFIX)) return null;
  const businessDay = suffix.slice(DAILY_PREFIX.length);
  return isBusinessDay(businessDay) ? { kind: 'daily', businessDay } : null;
}
