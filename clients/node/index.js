'use strict';
// What runs of Redrive inside BullMQ workers. It changes how jobs are retried where somebody published a policy that says so, and nowhere
// else; nothing here throws into a job, blocks or slows one.
const gate = require('./lib/gate');
const { homeOf } = require('./lib/home');
const { CONTROL } = require('./lib/ledger');
const notes = require('./lib/notes');
const { namesOf } = require('./lib/matching');
const { retryAfterS } = require('./lib/retry-after');
const { judge } = require('./lib/verdict');

const RATE_LIMIT = 'bullmq:rateLimitExceeded';
const guarded = new WeakSet();

class Quarantined extends Error {
  constructor() {
    super('it has ended its worker too often, and waits in quarantine');
    this.name = 'Quarantined';
  }
}

/** The same worker, whose jobs are retried as Redrive's policies say from now on. Where that cannot be, it is left as it is, and that is said. */
function worker(found, options = {}) {
  const log = options.log ?? ((sentence) => console.warn(sentence));
  try {
    if (guarded.has(found)) return found;
    const method = typeof found?.callProcessJob === 'function' ? 'callProcessJob' : 'processFn';
    if (typeof found?.[method] !== 'function' || typeof found.name !== 'string') throw new Error('this is no Worker of BullMQ 4 to 6 with a processor');
    const home = homeOf(options);
    if (home === null) return found;
    guarded.add(found);
    home.add(found);
    const run = found[method];
    found[method] = function (job, ...rest) {
      return around(home, found, job, rest, () => run.call(this, job, ...rest));
    };
  } catch (error) {
    log(`Redrive is not put into this worker: ${error.message}.`);
  }
  return found;
}

async function around(home, worker, job, [token], run) {
  if (home.firstLook) await home.firstLook;
  if (home.mode === 'off') return run();
  const queue = worker.name, began = Date.now();
  const place = await gate.enter();
  let chosen = null, start = null;
  try {
    try {
      chosen = home.inForce.choose(queue, String(job.name));
      if (chosen?.isEnforced && chosen.policy.poison) {
        const found = await home.ledger.starting(chosen.policy, job, queue, place, home.concurrency === 1, () => Boolean(worker.closing));
        if (found.isPutOff) return await putOff(job, token);
        if (found.crashes) {
          await quarantine(home, worker, job, chosen, found);
          throw new Quarantined();
        }
        start = found.start;
      }
    } catch (error) {
      if (error instanceof Quarantined || error.name === 'DelayedError') throw error;
      broke(home, error);
    }
    home.count(queue, 'started');
    let error;
    try {
      const answer = await run();
      home.count(queue, 'succeeded', (Date.now() - began) / 1000);
      return answer;
    } catch (thrown) {
      error = thrown;
    }
    try {
      if (!isControl(error)) await failed(home, worker, job, chosen, start, error, (Date.now() - began) / 1000);
    } catch (ours) {
      broke(home, ours);
    }
    throw error;
  } finally {
    gate.leave(place);
    if (start && !start.isTold) home.ledger.ended(start);
  }
}

async function failed(home, worker, job, chosen, start, error, seconds) {
  if (start && /^Unexpected exit code: /.test(String(error?.message))) {
    start.isTold = true; // BullMQ's sandbox: the process that ran the job is no more
    const crashes = await home.ledger.crashed(start, String(error.message));
    if (crashes) {
      await quarantine(home, worker, job, chosen, { start, crashes });
      return;
    }
  }
  const decision = await decide(home, worker, job, chosen, error);
  const attempt = attemptOf(job);
  const isAgain = decision === null || decision.isObserved ? goesOn(job, attempt, error) : decision.act === 'again';
  home.count(worker.name, isAgain ? 'retried' : 'failed', seconds);
  if (decision !== null && !decision.isObserved) act(home, job, decision, attempt);
  await notes.leave(home, worker, job, decision, error, { isAgain, attempt });
}

/** What the policy says, {act, reason, delayS …}; null where it leaves the job to BullMQ. */
async function decide(home, worker, job, chosen, error) {
  if (chosen === null || job.discarded) return null;
  const { policy, label, isEnforced } = chosen;
  if (!policy.retries) return null;
  const attempt = attemptOf(job);
  if (policy.native === 'after' && goesOn(job, attempt, error)) return null;
  const verdict = await judge(policy, {
    attempt,
    names: namesOf(error),
    isUnrecoverable: isUnrecoverable(error),
    retryAfterS: retryAfterS(error, Date.now()),
    previousS: policy.backoff.kind === 'decorrelated' && attempt > 1 ? await notes.waited(worker, job) : null,
  }, Math.random, (of) => (isEnforced ? home.spend(of) : true));
  return { ...verdict, label, isObserved: !isEnforced, maxAttempts: policy.max_attempts };
}

/** BullMQ asks a job's options what becomes of it: while it does, they say what was decided. The job in Redis keeps its own. */
function act(home, job, decision, attempt, afterwards) {
  const move = job.moveToFailed;
  job.moveToFailed = async function (...given) {
    const { backoff } = job.opts;
    const isAgain = decision.act === 'again';
    job.opts = {
      ...job.opts,
      attempts: isAgain ? decision.maxAttempts : attempt, // again is only said below it
      backoff: isAgain ? { type: 'fixed', delay: Math.round(decision.delayS * 1000) } : backoff,
    };
    try {
      const answer = await move.apply(job, given);
      afterwards?.();
      return answer;
    } finally {
      // `attempts` stays, for listeners that ask whether these were all; a backoff that somebody adds the job with again must be its own.
      job.opts = { ...job.opts, backoff };
    }
  };
}

async function quarantine(home, worker, job, { label, policy }, { start, crashes }) {
  const decision = { act: 'dead', reason: 'poison', label, isObserved: false, maxAttempts: policy.retries ? policy.max_attempts : null, crashes };
  const attempt = attemptOf(job);
  home.count(worker.name, 'failed');
  act(home, job, decision, attempt, () => home.ledger.forget(start));
  await notes.leave(home, worker, job, decision, new Quarantined(), { isAgain: false, attempt });
}

/** The worker closes while it is not known yet whether the job may start: another one asks again. No attempt, but to BullMQ 4, which counts starts. */
async function putOff(job, token) {
  await job.moveToDelayed(Date.now() + 5000, token);
  throw Object.assign(new Error('DelayedError'), { name: 'DelayedError' });
}

/** Which execution this is, counted from 1. BullMQ 4 counts a start, later ones an end. */
const attemptOf = (job) => (job.attemptsStarted === undefined ? Math.max(1, job.attemptsMade) : job.attemptsMade + 1);
const isUnrecoverable = (error) => namesOf(error).includes('UnrecoverableError');
/** Whether BullMQ itself would try the job again. */
const goesOn = (job, attempt, error) => attempt < (job.opts?.attempts ?? 1) && !job.discarded && !isUnrecoverable(error);
const isControl = (error) => error?.message === RATE_LIMIT || CONTROL.test(String(error?.name)) || error?.message === 'DelayedError';

function broke(home, error) {
  home.broken++;
  if (home.broken === 1) home.log(`Redrive failed at something of its own (${error?.stack ?? error}); what BullMQ does with the job holds.`);
}

/** For `settings.backoffStrategy`: the wait in ms, -1 where the job is dead. `otherwise` where no policy decides. */
function backoffStrategy(options, otherwise = (_, __, ___, job) => job?.opts?.backoff?.delay ?? 0) {
  let home = null;
  try {
    home = homeOf(options);
  } catch (error) {
    (options?.log ?? console.warn)(`Redrive decides over no retries here: ${error.message}.`);
  }
  return async function strategy(attemptsMade, type, error, job) {
    try {
      if (home?.firstLook) await home.firstLook;
      const queue = job?.queueName ?? '';
      const chosen = home?.inForce.choose(queue, String(job?.name ?? ''));
      if (chosen?.isEnforced && chosen.policy.retries) {
        const names = namesOf(error);
        const ended = { attempt: attemptsMade, names, isUnrecoverable: names.includes('UnrecoverableError'), retryAfterS: retryAfterS(error, Date.now()) };
        const said = await judge(chosen.policy, ended, Math.random, (of) => home.spend(of));
        return said.act === 'again' ? Math.round(said.delayS * 1000) : -1;
      }
    } catch (ours) {
      broke(home, ours);
    }
    return otherwise(attemptsMade, type, error, job);
  };
}

module.exports = { worker, backoffStrategy };
