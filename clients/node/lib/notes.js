'use strict';
// What was decided over an attempt, told to the desk: a field beside the job, in BullMQ's own Redis, that its reader takes with the rest. A
// job that BullMQ may forget when it fails is kept whole, in keys beside. Both are sent on BullMQ's own connection before BullMQ moves
// the job, so they are done before it is, and nobody waits for them.
const { readFileSync } = require('node:fs');
const path = require('node:path');
const keys = require('./keys');
const { CALL_MS, within } = require('./redis');

const MOST_KEPT = 10000, MOST_BYTES = 256 * 1024 ** 2; // jobs that the desk has not read yet
const KEPT_S = 7 * 86400;
const MOST_STACK = 128000; // characters
const lua = (name) => readFileSync(path.join(__dirname, '..', 'lua', `${name}.lua`), 'utf8');
const NOTE = lua('note'), KEEP = lua('keep');

async function leave(home, worker, job, decision, error, { isAgain, attempt }) {
  const client = await clientOf(worker);
  if (client === null) return;
  const text = JSON.stringify(noteOf(home, job, decision));
  const key = worker.toKey(String(job.id));
  if (isAgain || !mayBeForgotten(worker, job)) {
    client.call('EVAL', NOTE, 1, key, text).catch(() => home.broken++);
    return;
  }
  const fields = [
    'failedReason', String(error?.message ?? ''),
    'stacktrace', JSON.stringify([...(job.stacktrace ?? []), String(error?.stack ?? '').slice(0, MOST_STACK)].slice(-10)),
    'finishedOn', Date.now(),
    job.attemptsStarted === undefined ? 'attemptsMade' : 'atm', attempt,
    'redriveNote', text,
  ];
  const kept = keys.kept(home.source), name = `${worker.name}:${job.id}`;
  client.call('EVAL', KEEP, 4, key, `${kept}:${name}`, kept, `${kept}-bytes`, name, MOST_KEPT, MOST_BYTES, KEPT_S, ...fields)
    .then((isKept) => Number(isKept) || home.dropped++, () => home.dropped++);
}

/** `of` says which execution this is about: the moment, in BullMQ's own words, at which it began. */
function noteOf(home, job, decision) {
  const note = { v: 1, of: job.processedOn ?? null, worker: home.name, host: home.host, release: home.release };
  if (decision === null) return note;
  note.policy = decision.label;
  if (decision.isObserved) {
    const why = decision.reason ? `: ${decision.reason}` : '';
    note.observed = decision.act === 'again' ? `would retry in ${Number(decision.delayS.toPrecision(3))} s${why}` : `would be dead${why}`;
    return note;
  }
  Object.assign(note, { reason: decision.reason, max_attempts: decision.maxAttempts });
  if (decision.act === 'again') note.delay_s = decision.delayS;
  if (decision.escalate) note.escalate = true;
  if (decision.crashes) note.crashes = decision.crashes;
  return note;
}

/** The wait before this attempt, in seconds; null where nobody knows. */
async function waited(worker, job) {
  try {
    const client = await clientOf(worker);
    const text = client && (await within(client.call('HGET', worker.toKey(String(job.id)), 'redriveNote'), Date.now() + CALL_MS));
    const found = text ? JSON.parse(text).delay_s : null;
    return typeof found === 'number' ? found : null;
  } catch {
    return null;
  }
}

function mayBeForgotten(worker, job) {
  const said = job.opts?.removeOnFail ?? worker.opts?.removeOnFail;
  return said === true || typeof said === 'number' || typeof said?.count === 'number' || said?.age === 0;
}

/** BullMQ's own connection, where it is one of ioredis; null where it is another database. */
async function clientOf(worker) {
  const client = await (worker.client ?? worker.backend?.client);
  return typeof client?.call === 'function' ? client : null;
}

module.exports = { leave, waited };
