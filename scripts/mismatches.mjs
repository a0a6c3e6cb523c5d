// A reporter for node --test that prints what failed, one line each: parents of
// a failed subtest say nothing of their own.
export default async function* mismatches(events) {
  for await (const { type, data } of events) {
    if (type !== 'test:fail' || data.details.error.failureType === 'subtestsFailed') continue;
    const error = data.details.error.cause ?? data.details.error;
    yield `${String(error.message ?? error).split('\n')[0]}\n`;
  }
}
