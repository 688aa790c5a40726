'use strict';
// What all guarded workers of a process share: one connection to the store, the policies, the sign of life.
const { randomUUID } = require('node:crypto');
const { readFileSync } = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { InForce, RUNGS } = require('./in-force');
const keys = require('./keys');
const { Ledger } = require('./ledger');
const { CALL_MS, Said, Script, Store } = require('./redis');
const { version } = require('../package.json');

const POLL_MS = 1000, BEAT_MS = 5000; // `off` must reach every worker within two seconds
const FIRST_LOOK_MS = 1000; // that the first job of a process may wait for the policies
const KEPT_MS = 8 * 86400e3; // at least, of what is spent of a budget
const FORGET_S = 86400;
const LONGEST_TURN_S = 3600; // of a retry, by a share of a budget
const BUDGET = new Script(readFileSync(path.join(__dirname, '..', 'lua', 'budget.lua'), 'utf8'));

const homes = new Map();
let isWarned = false; // of the public key, once per process

/** The one of this source and store in this process. Throws with a sentence where it cannot be. */
function homeOf(options) {
  const { source } = options;
  const mode = options.mode ?? process.env.REDRIVE_MODE ?? 'enforce';
  if (!keys.isSource(source)) throw new Error('`source` must be lower-case letters, digits, - and _, 63 at most');
  if (!RUNGS.includes(mode)) throw new Error(`REDRIVE_MODE must be one of ${RUNGS.join(', ')}`);
  if (mode === 'off') return null;
  const url = options.store ?? process.env.REDRIVE_REDIS_URL ?? fromFile(process.env.REDRIVE_REDIS_URL_FILE);
  if (!url) throw new Error('REDRIVE_REDIS_URL is not set');
  warnOfPublicKey(options);
  const named = `${source} ${url}`;
  // One that was told to end has ended for the desk; workers that are made after that live on their own.
  if (!homes.has(named) || homes.get(named).ledger.isLeaving) homes.set(named, new Home(source, url, mode, options));
  return homes.get(named);
}

/** Celery workers copy raw messages to Redrive's store, encrypted with this key. This agent copies none there: nothing is encrypted. */
function warnOfPublicKey(options) {
  if (isWarned || !process.env.REDRIVE_PUBLIC_KEY) return;
  isWarned = true;
  (options.log ?? console.warn)(
    "REDRIVE_PUBLIC_KEY has no effect on BullMQ workers: Redrive's agent encrypts nothing. It sends no job data to Redrive's store; " +
    "job data stays readable in BullMQ's own Redis, where the desk reads it.",
  );
}

const fromFile = (name) => (name ? readFileSync(name, 'utf8').trim() : undefined);

class Home {
  constructor(source, url, mode, options) {
    this.source = source;
    this.log = options.log ?? ((sentence) => console.warn(sentence));
    this.store = new Store(url);
    this.host = os.hostname();
    this.name = String(options.name ?? `${this.host}:${process.pid}`).slice(0, 255);
    this.release = String(options.release ?? process.env.REDRIVE_RELEASE ?? '').slice(0, 100);
    this.boot = randomUUID().replaceAll('-', '');
    this.inForce = new InForce(source, mode, this.log);
    this.ledger = new Ledger(this.store, source, this.boot, this.name, this.host);
    this.workers = new Map(); // worker -> what it allowed itself before we came
    this.counts = {};
    this.broken = 0; // times that we failed at something of our own
    this.dropped = 0; // jobs that BullMQ forgot and that could not be kept
    this.shares = new Map(); // budget -> when this process' share of it will be full again (s, monotonic)
    this.sharedOut = 0; // retries by these shares
    this.beatDue = 0;
    this.isAway = false;
    this.isOver = false;
    this.timer = null;
    const looked = this.look();
    this.firstLook = Promise.race([looked, new Promise((go) => setTimeout(go, FIRST_LOOK_MS).unref())]).then(() => (this.firstLook = null));
    endings.add(this);
  }

  get mode() {
    return this.inForce.mode;
  }

  add(worker) {
    this.workers.set(worker, { stalled: worker.opts?.maxStalledCount });
    this.raise(); // where the policies are known already
    this.beatDue = 0;
    if (typeof worker.on !== 'function') return;
    worker.on('closing', () => this.note(worker));
    worker.on('closed', () => this.remove(worker));
  }

  /** A worker was told to end: should the process die before it has, none of its jobs is to blame. */
  note(worker) {
    this.workers.get(worker).isClosing = true; // BullMQ says so before the worker's own `closing` does
    if ([...this.workers.values()].every((one) => one.isClosing)) this.leave();
  }

  leave() {
    if (this.ledger.isLeaving) return;
    this.ledger.isLeaving = true;
    this.ledger.beat('leaving').catch(() => {});
  }

  remove(worker) {
    this.workers.delete(worker);
    if (this.workers.size) return;
    clearTimeout(this.timer);
    homes.forEach((home, named) => home === this && homes.delete(named));
    endings.delete(this);
    this.isOver = true;
    Promise.allSettled([this.tell(), this.ledger.beat('gone')]).then(() => this.store.close());
  }

  /** How many jobs of this process may run at once. */
  get concurrency() {
    return [...this.workers.keys()].reduce((sum, one) => sum + (Number(one.concurrency ?? one.opts?.concurrency) || 1), 0);
  }

  async look() {
    try {
      if (await this.inForce.poll(this.store)) this.beatDue = 0;
      if (this.isAway) this.log("Redrive's store answers again.");
      this.isAway = false;
      this.raise();
      if (Date.now() >= this.beatDue) {
        this.beatDue = Date.now() + BEAT_MS;
        await this.ledger.beat(this.ledger.isLeaving ? 'leaving' : '');
        await this.tell();
      }
    } catch (error) {
      if (!this.isAway) this.log(`Redrive's store does not answer (${error.message}): jobs go on, by the policies last in force.`);
      this.isAway = true;
    }
    if (!this.isOver) {
      // Drawn, so that a fleet that was started together does not ask together.
      this.timer = setTimeout(() => this.look(), POLL_MS * (0.8 + 0.4 * Math.random()));
      this.timer.unref();
    }
  }

  /** BullMQ gives up a job that stalled twice, whoever made it stall: where a policy counts crashes, that comes later. */
  raise() {
    for (const [worker, { stalled }] of this.workers) {
      const crashes = this.inForce.crashesOn(worker.name);
      if (worker.opts && typeof stalled === 'number') worker.opts.maxStalledCount = crashes ? Math.max(stalled, 10 * crashes) : stalled;
    }
  }

  async tell() {
    const queues = [...new Set([...this.workers.keys()].map((worker) => worker.name))];
    this.storeUser ??= await this.store.ask(['ACL', 'WHOAMI']).then(String, (error) => {
      if (error instanceof Said) return ''; // an older server, or one that allows this user no such question
      throw error;
    });
    const said = {
      v: 1, store_user: this.storeUser, name: this.name, boot: this.boot, at: Date.now() / 1000, host: this.host, pid: process.pid,
      release: this.release, celery: '', guard: version, mode: this.mode, policies: this.inForce.versions, refused: this.inForce.refused,
      pool: 'node', broker: 'bullmq', concurrency: this.concurrency, queues, tasks: '', tasks_cut: false, configuration: '',
      late_ack: Object.fromEntries(queues.map((queue) => [queue, true])), counts: this.counts, spooled: 0, dropped: this.dropped,
      broken: this.broken, uncounted: this.ledger.uncounted, overrun: 0, shared_out: this.sharedOut, repeated: 0, unasked: 0, unplaced: 0, unkept: 0,
    };
    await this.store.ask(['HSET', keys.workers(this.source), this.name, JSON.stringify(said)]);
    await this.store.ask(['EXPIRE', keys.workers(this.source), FORGET_S]);
  }

  /** Whether one retry of the policy's budget may be made, which is then spent; a number: seconds until its turn by this process' share. */
  async spend({ name, budget }) {
    const interval = budget.per_minute > 0 ? Math.ceil(60e6 / budget.per_minute) : 0;
    try {
      const answer = await this.store.run(BUDGET, [keys.budget(this.source)], [budget.group ?? name, interval, budget.burst, 1, KEPT_MS], CALL_MS);
      return Boolean(answer[0]);
    } catch {
      return this.share(budget.group ?? name, budget);
    }
  }

  /** Where the store does not answer: the budget divided by the workers that live. jobs_admin/worker/budget.py, Shares. */
  share(name, { per_minute: perMinute, burst }) {
    const live = this.ledger.liveWorkers, turnS = (60 / perMinute) * live, now = performance.now() / 1000;
    if (!perMinute) return false;
    const fullAt = Math.max(this.shares.get(name) ?? 0, now) + turnS;
    const waitS = Math.max(0, fullAt - now - (turnS * burst) / live);
    if (waitS > LONGEST_TURN_S) return false;
    this.shares.set(name, fullAt);
    this.sharedOut++;
    return waitS;
  }

  count(queue, what, seconds = 0) {
    const counts = (this.counts[queue] ??= { started: 0, succeeded: 0, failed: 0, retried: 0, busy_s: 0 });
    counts[what]++;
    counts.busy_s += seconds;
  }
}

// How processes end. Handlers of the app stay as they are: an uncaught exception and an unhandled rejection end in `exit` too.
const endings = new Set();
process.on('exit', () => endings.forEach((home) => home.ledger.lastWords()));
const onSignal = () => endings.forEach((home) => home.leave());
for (const signal of ['SIGTERM', 'SIGINT']) {
  // Only beside a listener of the app: alone, ours would keep the process from ending.
  if (process.listenerCount(signal)) process.on(signal, onSignal);
}
process.on('newListener', (event, listener) => {
  if ((event === 'SIGTERM' || event === 'SIGINT') && listener !== onSignal && !process.listeners(event).includes(onSignal)) process.on(event, onSignal);
});
process.on('removeListener', (event) => {
  if ((event === 'SIGTERM' || event === 'SIGINT') && process.listenerCount(event) === 1 && process.listeners(event)[0] === onSignal) process.off(event, onSignal);
});

module.exports = { homeOf };
