// What Redrive's piece does to real workers of BullMQ beside a real store, many cases in one process: test_node_worker.py runs it.
//
//   STORE=redis://… BULLMQ=redis://…/1 node --test parts.mjs
//
// Each case has a source of its own, and so policies, budgets and a sign of life of its own.
import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test as one } from 'node:test';
import * as bullmq4 from 'bullmq4';
import * as bullmq5 from 'bullmq5';
import * as bullmq6 from 'bullmq6';
import Redis from 'ioredis';

const require = createRequire(import.meta.url);
const redrive = require('../../clients/node/index.js');
const { homeOf } = require('../../clients/node/lib/home.js');
const { InForce } = require('../../clients/node/lib/in-force.js');
const keys = require('../../clients/node/lib/keys.js');
const { CONTROL } = require('../../clients/node/lib/ledger.js');
const notes = require('../../clients/node/lib/notes.js');
const { Store } = require('../../clients/node/lib/redis.js');

const { STORE, BULLMQ } = process.env;
// What a busy machine does not answer in a tenth of a second is no part of these cases.
const { ask } = Store.prototype;
Store.prototype.ask = function (args) {
  return ask.call(this, args, 10e3);
};
const store = new Redis(STORE), bull = new Redis(BULLMQ, { maxRetriesPerRequest: null });
const open = [];
after(async () => {
  await Promise.all(open.map((one) => one.closing ?? one.close()));
  await Promise.all([store.quit(), bull.quit()]); // every command is answered: none is rejected after the end
});
const together = []; // they mostly wait: for a policy to be read, for a job to be tried again
const test = (name, run) => together.push([name, run]);

const SOON = { kind: 'fixed', first_delay_s: 0.02 };

async function until(reached, what) {
  for (const ends = Date.now() + 90e3; Date.now() < ends; await new Promise((go) => setTimeout(go, 10))) {
    const answer = await reached();
    if (answer) return answer;
  }
  throw new Error(`waited for ${what}`);
}

let version = 0;
async function publish(source, policy, name = source) {
  const document = { match: { source }, mode: 'enforce', max_attempts: 3, backoff: SOON, ...policy };
  await store.hset(keys.policies, name, JSON.stringify({ name, version: ++version, policy: document }));
  await store.set(keys.policiesVersion, version);
}

class Gone extends Error {}

/** A worker with the piece on the queue `source`, its policy in force. Its `end` adds a job, and answers what it was when it was over. */
async function working(source, policy, run, { major = bullmq6, options = {}, guard = {} } = {}) {
  if (policy) await publish(source, policy);
  const said = [], starts = [];
  const queue = new major.Queue(source, { connection: bull });
  const worker = new major.Worker(source, (job, token) => {
    starts.push(job.id);
    return run(job, { nth: starts.filter((id) => id === job.id).length, token, worker });
  }, { connection: bull, drainDelay: 1, runRetryDelay: 50, ...options });
  open.push(worker, queue);
  worker.on('error', () => {});
  redrive.worker(worker, { source, store: STORE, log: (sentence) => said.push(sentence), ...guard });
  const home = homeOf({ source, store: STORE });
  const over = new Map(); // job -> how it ended, or who is to be told
  const told = (job, state) => {
    const waits = over.get(job.id);
    over.set(job.id, state);
    waits?.(state);
  };
  worker.on('completed', (job) => told(job, 'completed'));
  worker.on('failed', (job) => job.finishedOn && told(job, 'failed'));
  if (policy) await until(() => home.inForce.versions[source], 'the policy');
  const end = async (opts = {}, data = {}, name = 'job') => {
    over.delete(opts.jobId);
    const { id } = await queue.add(name, data, opts);
    const state = over.get(id) ?? await new Promise((resolve) => over.set(id, resolve));
    const hash = await bull.hgetall(`bull:${source}:${id}`);
    return { id, state, starts: starts.filter((one) => one === id).length, hash, note: JSON.parse(hash.redriveNote ?? 'null') };
  };
  return { worker, queue, home, end, said, starts, counts: () => home.counts[source] };
}

const fails = (make = () => new Gone('gone')) => () => { throw make(); };
const left = async (source, name = source) => store.hget(keys.budget(source), name);

test('what is no worker, and a setting that cannot be, changes nothing and is said once', () => {
  const worker = () => ({ name: 'q', callProcessJob() {}, on() {} });
  const { REDRIVE_REDIS_URL: was } = process.env;
  delete process.env.REDRIVE_REDIS_URL;
  for (const [found, options, words] of [
    [null, { source: 's', store: STORE }, /no Worker of BullMQ/],
    [{ name: 'q' }, { source: 's', store: STORE }, /no Worker of BullMQ/],
    [{ callProcessJob() {} }, { source: 's', store: STORE }, /no Worker of BullMQ/],
    [worker(), { source: 'No', store: STORE }, /`source` must be/],
    [worker(), { store: STORE }, /`source` must be/],
    [worker(), { source: 's', store: STORE, mode: 'loud' }, /REDRIVE_MODE must be one of off, capture, observe, enforce/],
    [worker(), { source: 's' }, /REDRIVE_REDIS_URL is not set/],
    [worker(), { source: 's', store: 'http://:secret@h' }, /not a redis/],
  ]) {
    const said = [], method = found?.callProcessJob;
    assert.equal(redrive.worker(found, { ...options, log: (sentence) => said.push(sentence) }), found);
    assert.equal(found?.callProcessJob, method);
    assert.equal(said.length, 1);
    assert.match(said[0], words);
    assert.ok(!said[0].includes('secret'));
  }
  const { warn } = console, told = [];
  console.warn = (sentence) => told.push(sentence);
  redrive.worker(null, { source: 's', store: STORE });
  console.warn = warn;
  assert.match(told.join(), /is not put into this worker/);
  for (const options of [{ mode: 'off' }, {}]) {
    const found = worker(), method = found.callProcessJob;
    if (!options.mode) process.env.REDRIVE_MODE = 'off';
    assert.equal(redrive.worker(found, { source: 's', store: STORE, log: assert.fail, ...options }), found);
    assert.equal(found.callProcessJob, method);
  }
  delete process.env.REDRIVE_MODE;
  if (was) process.env.REDRIVE_REDIS_URL = was;
});

test('the store is named by an option, by the environment, or in a file; a worker is guarded once, also an old one', () => {
  const file = path.join(tmpdir(), `redrive-parts-${process.pid}`);
  writeFileSync(file, `${STORE}\n`);
  const { host, port } = new Store(STORE).where;
  process.env.REDRIVE_REDIS_URL_FILE = file;
  assert.equal(homeOf({ source: 'by-file' }).store.where.port, port);
  process.env.REDRIVE_REDIS_URL = `redis://${host}:1`;
  assert.equal(homeOf({ source: 'by-name' }).store.where.port, 1);
  assert.equal(homeOf({ source: 'by-name', store: STORE }).store.where.port, port);
  delete process.env.REDRIVE_REDIS_URL;
  delete process.env.REDRIVE_REDIS_URL_FILE;
  rmSync(file);
  const old = { name: 'q', processFn() {} }, own = old.processFn;
  redrive.worker(old, { source: 'by-hand', store: STORE, log: assert.fail });
  const wrapped = old.processFn;
  assert.notEqual(wrapped, own);
  assert.equal(redrive.worker(old, { source: 'by-hand', store: STORE, log: assert.fail }), old);
  assert.equal(old.processFn, wrapped);
  assert.equal(homeOf({ source: 'long', store: STORE, name: 'n'.repeat(300), release: 'r'.repeat(300) }).name.length, 255);
  assert.equal(homeOf({ source: 'long', store: STORE }).release.length, 100);
  assert.match(homeOf({ source: 'by-hand', store: STORE }).name, new RegExp(`:${process.pid}$`));
});

test('native: after leaves the job to BullMQ until its own attempts are spent', async () => {
  const deciders = [];
  const { end } = await working('after', { native: 'after', max_attempts: 3 }, async (job, { nth }) => {
    if (nth > 1) deciders.push(JSON.parse(await bull.hget(`bull:after:${job.id}`, 'redriveNote')).policy?.split('@')[0]);
    throw new Gone('gone');
  });
  const job = await end({ attempts: 2 });
  assert.deepEqual([job.starts, job.note.reason, deciders], [3, 'exhausted', [undefined, 'after']]);
});

test('native: after is left where BullMQ gives up before: an error of its own that says so, and a job that was discarded', async () => {
  const { end, counts } = await working('after-all', { native: 'after', budget: { per_minute: 0.0001, burst: 5 } }, (job) => {
    if (job.name === 'discarded') job.discard();
    throw job.name === 'discarded' ? new Gone('gone') : new bullmq5.UnrecoverableError('no');
  }, { major: bullmq5 });
  const job = await end({ attempts: 5 });
  assert.deepEqual([job.starts, job.note.reason, job.note.policy.split('@')[0]], [1, 'permanent', 'after-all']);
  const discarded = await end({ attempts: 5, removeOnFail: true }, {}, 'discarded');
  assert.equal(discarded.starts, 1);
  const kept = await bull.hgetall(`${keys.kept('after-all')}:after-all:${discarded.id}`);
  assert.equal(JSON.parse(kept.redriveNote).policy, undefined); // nobody decided but the job itself
  assert.equal(await left('after-all'), null); // and nothing of the budget is spent
  assert.deepEqual([counts().failed, counts().retried], [2, 0]);
});

test('a policy that observes spends nothing and says what it would have done', async () => {
  const { end, counts } = await working('observes', { mode: 'observe', budget: { per_minute: 5, burst: 5 }, backoff: { kind: 'fixed', first_delay_s: 1.23456 } },
    (job) => { throw Object.assign(new Gone('gone'), job.data); });
  const job = await end({ attempts: 1 }, { retryAfter: 0.5 });
  assert.equal(job.starts, 1);
  assert.deepEqual([job.note.observed, job.note.reason, job.note.max_attempts], ['would retry in 1.23 s: asked to wait 0.5 s', undefined, undefined]);
  assert.equal(await left('observes'), null);
  assert.deepEqual([counts().failed, counts().retried], [1, 0]);
  await publish('observes', { mode: 'observe', max_attempts: 9 });
  await until(async () => (await end({ attempts: 1 })).note.observed === 'would retry in 0.02 s', 'the edit');
});

test('a ceiling below observe decides nothing; who failed where is told all the same', async () => {
  const { end, home } = await working('captures', { max_attempts: 5 }, fails(), { guard: { mode: 'capture', release: 'r1', name: 'n1' } });
  const job = await end({ attempts: 1 });
  assert.equal(job.starts, 1);
  assert.deepEqual({ ...job.note, of: 0 }, { v: 1, of: 0, worker: 'n1', host: home.host, release: 'r1' });
  assert.equal(String(job.note.of), job.hash.processedOn);
});

test('a decorrelated wait grows from the one before it, which the note tells', async () => {
  const first = 0.004;
  const { worker, end } = await working('grows', { max_attempts: 3, backoff: { kind: 'decorrelated', first_delay_s: first } }, async (job, { nth }) => {
    if (nth > 1) job.updateProgress(JSON.parse(await bull.hget(`bull:grows:${job.id}`, 'redriveNote')).delay_s);
    throw new Gone('gone');
  }, { options: { concurrency: 20 } });
  const jobs = await Promise.all(Array.from({ length: 40 }, () => end()));
  // After the second attempt it may be nine times the first delay, and without what was waited before three times.
  assert.ok(jobs.some((job) => Number(job.hash.progress) > 3 * first));
  assert.ok(jobs.every((job) => Number(job.hash.progress) <= 9 * first));
  const waited = async (text) => {
    await bull.hset('bull:grows:x', 'redriveNote', text);
    return notes.waited(worker, { id: 'x' });
  };
  await until(async () => (await waited('{"delay_s": 5}')) === 5, 'the wait to be read'); // a tenth of a second is little on a busy machine
  for (const nothing of ['{}', '{"delay_s": "5"}', 'no', 'null']) assert.equal(await waited(nothing), null);
  assert.equal(await notes.waited(worker, { id: 'nowhere' }), null);
  assert.equal(await notes.waited({ client: Promise.resolve({}) }, { id: 'x' }), null);
});

test('what is no failure stays BullMQ\'s own: a delay, a limit of rate', async () => {
  const { end, counts } = await working('control', { max_attempts: 1 }, async (job, { nth, token, worker }) => {
    if (nth > 1) return 'well';
    if (job.name === 'delayed') {
      await job.moveToDelayed(Date.now() + 10, token);
      throw new bullmq6.DelayedError();
    }
    await worker.rateLimit(20);
    throw bullmq6.Worker.RateLimitError();
  });
  for (const name of ['delayed', 'limited']) {
    const job = await end({}, {}, name);
    assert.deepEqual([job.state, job.starts, job.note], ['completed', 2, null]);
  }
  assert.deepEqual([counts().failed, counts().retried, counts().succeeded, counts().started], [0, 0, 2, 4]);
  for (const name of ['DelayedError', 'WaitingError', 'WaitingChildrenError']) assert.match(name, CONTROL);
  for (const name of ['MyDelayedError', 'WaitingErrors', 'Error']) assert.doesNotMatch(name, CONTROL);
});

test('the first job of a process waits for the policies', async () => {
  let starts = 0;
  for (let n = 0; n < 3 && starts !== 3; n++) { // once more where the machine was so busy that the wait was over before
    starts = 0;
    const source = `first${n}`, queue = new bullmq6.Queue(source, { connection: bull });
    await publish(source, {});
    const { id } = await queue.add('job', {});
    const worker = new bullmq6.Worker(source, () => { starts++; throw new Gone('gone'); }, { connection: bull, drainDelay: 1, runRetryDelay: 50 });
    open.push(worker, queue);
    redrive.worker(worker, { source, store: STORE });
    await until(async () => (await queue.getJob(id)).finishedOn, 'the job to be dead');
  }
  assert.equal(starts, 3);
});

test('who listens sees how many attempts held and the backoff that the job was added with; the job in Redis keeps both', async () => {
  const { worker, end, counts } = await working('listens', { max_attempts: 2 }, fails());
  const seen = [];
  worker.on('failed', (job) => seen.push([job.opts.attempts, job.opts.backoff, job.attemptsMade]));
  const backoff = { type: 'exponential', delay: 9 };
  const job = await end({ attempts: 7, backoff });
  assert.deepEqual(seen, [[2, backoff, 1], [2, backoff, 2]]);
  const kept = JSON.parse(job.hash.opts);
  assert.deepEqual([kept.attempts, kept.backoff], [7, backoff]);
  assert.deepEqual([counts().retried, counts().failed], [1, 1]);
});

test('what escalates is told with the note', async () => {
  const { end } = await working('escalates', { max_attempts: 1, exhausted: 'escalate' }, fails());
  const { note } = await end();
  assert.deepEqual([note.reason, note.escalate, note.max_attempts, note.delay_s], ['exhausted', true, 1, undefined]);
  await publish('escalates', { max_attempts: 1 });
  await until(async () => (await end()).note.escalate === undefined, 'the edit');
});

test('where something of ours throws the decision holds, and it is said once', async () => {
  const { end, home, said } = await working('breaks', { max_attempts: 2 }, fails(() => Object.assign(new Gone('gone'), { stack: Object.create(null) })));
  for (let n = 1; n <= 2; n++) {
    const job = await end({ removeOnFail: true });
    assert.deepEqual([job.starts, job.state, home.broken], [2, 'failed', n]);
  }
  assert.equal(said.filter((sentence) => /failed at something of its own/.test(sentence)).length, 1);
});

test('a job that BullMQ may forget is kept when it is dead, and not before', async () => {
  const { worker, end } = await working('forgets', { max_attempts: 2 }, fails());
  const kept = async (id) => (await bull.zscore(keys.kept('forgets'), `forgets:${id}`)) !== null;
  for (const [removeOnFail, isKept] of [[true, true], [0, true], [5, true], [{ count: 3 }, true], [{ age: 0 }, true], [{ age: 3600 }, false], [false, false], [undefined, false]]) {
    for (const ofWorker of typeof removeOnFail === 'object' ? [false, true] : [false]) { // a worker is told in one form only
      worker.opts.removeOnFail = ofWorker ? removeOnFail : undefined;
      const { id, starts } = await end(ofWorker ? {} : { removeOnFail });
      assert.deepEqual([starts, await kept(id)], [2, isKept], JSON.stringify([removeOnFail, ofWorker]));
    }
  }
  worker.opts.removeOnFail = { count: 0 };
  assert.equal(await kept((await end({ removeOnFail: false })).id), false); // what the job says goes before
  const { id } = await end({ removeOnFail: 3 });
  const hash = await bull.hgetall(`${keys.kept('forgets')}:forgets:${id}`);
  assert.deepEqual([hash.failedReason, hash.atm, JSON.parse(hash.stacktrace).length, JSON.parse(hash.redriveNote).reason], ['gone', '2', 2, 'exhausted']);
  assert.ok(Number(hash.finishedOn) >= Number(hash.processedOn));
});

test('on BullMQ 4 a kept job counts its attempts as that does', async () => {
  const { end } = await working('forgets4', { max_attempts: 2 }, fails(), { major: bullmq4 });
  const { id, starts } = await end({ removeOnFail: true });
  const hash = await bull.hgetall(`${keys.kept('forgets4')}:forgets4:${id}`);
  assert.deepEqual([starts, hash.attemptsMade, hash.atm], [2, '2', undefined]);
});

test('what is kept is counted as it is, once where a job dies again before it is read, and not for ever', async () => {
  const { end } = await working('weighs', { max_attempts: 1 }, (job) => { throw new Gone('x'.repeat(job.data.size)); });
  const all = keys.kept('weighs'), kept = `${all}:weighs:same`;
  for (const size of [9000, 100]) {
    await end({ removeOnFail: true, jobId: 'same' }, { size, [size]: true });
    const { keptBytes, ...hash } = await bull.hgetall(kept);
    assert.deepEqual([JSON.parse(hash.data), hash.failedReason.length], [{ size, [size]: true }, size]);
    const bytes = Object.entries(hash).flat().reduce((sum, text) => sum + Buffer.byteLength(text), 0);
    assert.deepEqual([Number(keptBytes), Number(await bull.get(`${all}-bytes`)), await bull.zcard(all)], [bytes, bytes, 1]);
  }
  for (const key of [kept, all, `${all}-bytes`]) assert.ok((await bull.ttl(key)) > 6 * 86400 && (await bull.ttl(key)) <= 7 * 86400);
  assert.ok(Math.abs(await bull.zscore(all, 'weighs:same') - Date.now() / 1000) < 60);
});

test('of what is kept the last ten stacks are, and of each its beginning', async () => {
  const { end } = await working('stacks', { max_attempts: 12, backoff: { kind: 'fixed', first_delay_s: 0.001 } }, (_, { nth }) => {
    throw Object.assign(new Gone('gone'), { stack: `${nth} `.padEnd(nth === 12 ? 200000 : 9, 'y') });
  });
  const { id } = await end({ removeOnFail: true });
  const stacks = JSON.parse(await bull.hget(`${keys.kept('stacks')}:stacks:${id}`, 'stacktrace'));
  assert.deepEqual(stacks.map((stack) => parseInt(stack)), [3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
  assert.equal(stacks[9].length, 128000);
});

test('what finds no room, or cannot be written, is counted', async () => {
  const { worker, end, home } = await working('fills', { max_attempts: 1 }, fails());
  const many = Array.from({ length: 10000 }, (_, n) => [n, `q:${n}`]).flat();
  await bull.zadd(keys.kept('fills'), ...many);
  await end({ removeOnFail: true });
  await until(() => home.dropped === 1, 'the count');
  await bull.zremrangebyrank(keys.kept('fills'), 0, 0);
  const { id } = await end({ removeOnFail: true });
  assert.equal(await bull.zcard(keys.kept('fills')), 10000);
  assert.equal(await bull.exists(`${keys.kept('fills')}:fills:${id}`), 1);
  await bull.set(`${keys.kept('fills')}-bytes`, 256 * 1024 ** 2);
  await bull.zremrangebyrank(keys.kept('fills'), 0, 0);
  await end({ removeOnFail: true });
  await until(() => home.dropped === 2, 'the count');
  await bull.set(keys.kept('fills'), 'no list');
  await end({ removeOnFail: true });
  await until(() => home.dropped === 3, 'the count');
  const closed = new Redis(BULLMQ, { lazyConnect: true, enableOfflineQueue: false });
  const before = home.broken;
  await notes.leave(home, { client: closed, toKey: worker.toKey, name: 'fills' }, { id: '1', opts: {} }, null, new Gone(), { isAgain: true, attempt: 1 });
  await until(() => home.broken === before + 1, 'the count');
  closed.disconnect();
  await notes.leave(home, { client: {}, get toKey() { return assert.fail; } }, { id: '1' }, null, new Gone(), { isAgain: true, attempt: 1 }); // no connection of ioredis
});

test('an own strategy asks the policy, and is asked where none decides', async () => {
  await publish('strategy', { max_attempts: 3, classes: [{ error: 'Bad', as: 'permanent' }], budget: { per_minute: 0.0001, burst: 3 } });
  const said = [];
  const of = (options, ...more) => redrive.backoffStrategy({ source: 'strategy', store: STORE, log: (sentence) => said.push(sentence), ...options }, ...more);
  const strategy = of({});
  const job = { queueName: 'q', name: 'job', opts: { backoff: { delay: 77 } } };
  const { Queue, Worker } = bullmq6;
  const queue = new Queue('strategy', { connection: bull });
  const worker = new Worker('strategy', fails(), { connection: bull, drainDelay: 1, runRetryDelay: 50, settings: { backoffStrategy: strategy } });
  open.push(worker, queue);
  const { id } = await queue.add('job', {}, { attempts: 9, backoff: { type: 'redrive' } });
  await until(async () => (await queue.getJob(id)).finishedOn, 'the job to be dead');
  assert.equal((await queue.getJob(id)).attemptsMade, 3);
  assert.match(await left('strategy'), /^\d+ \d+ 3$/);
  assert.equal(await strategy(1, 'redrive', new Gone('gone'), job), 20);
  assert.equal(await strategy(1, 'redrive', Object.assign(new Gone('gone'), { name: 'Bad' }), job), -1);
  assert.equal(await strategy(1, 'redrive', new bullmq6.UnrecoverableError('no'), job), -1);
  await until(async () => (await strategy(1, 'redrive', new Gone('gone'), job)) === -1, 'the budget to be spent');
  await publish('strategy', { mode: 'observe' });
  await until(async () => (await strategy(3, 'redrive', new Gone('gone'), job)) === 77, 'the policy to observe only');
  const own = of({}, (attempt, type, error, of) => [attempt, type, error.message, of.name].join());
  assert.equal(await own(3, 'redrive', new Gone('gone'), job), '3,redrive,gone,job');
  assert.equal(await strategy(1, 'redrive', new Gone('gone'), { name: 'no options' }), 0);
  assert.equal(await strategy(1, 'redrive', new Gone('gone')), 0);
  assert.equal(said.length, 0);
  assert.equal(await of({ source: 'No' })(1, 'redrive', new Gone('gone'), job), 77);
  assert.match(said[0], /decides over no retries here: `source` must be/);
  assert.equal(await strategy(1, 'redrive', new Gone('gone'), { ...job, get queueName() { throw new Error('no'); } }), 77);
  assert.match(said[1], /failed at something of its own/);
});

test('where a policy counts crashes BullMQ gives a job up later, and then as before', async () => {
  const { worker, home } = await working('stalls', { poison: { crashes: 2, window_s: 60 } }, fails());
  const is = (most) => until(() => worker.opts.maxStalledCount === most, most);
  await is(20);
  const patient = { name: 'stalls', opts: { maxStalledCount: 50 } }, other = { name: 'x', opts: { maxStalledCount: 1 } }, odd = { name: 'stalls', opts: {} };
  for (const one of [patient, other, odd, { name: 'stalls' }]) home.add(one);
  await publish('stalls', { match: { source: 'stalls', queue: 'stalls' }, poison: { crashes: 3, window_s: 60 } });
  await is(30);
  assert.deepEqual([patient.opts, other.opts, odd.opts], [{ maxStalledCount: 50 }, { maxStalledCount: 1 }, {}]);
  await publish('stalls', { mode: 'observe', poison: { crashes: 2, window_s: 60 } });
  await is(1);
});

test('a suspect whose worker closes meanwhile is put off for another, which is no attempt', async () => {
  const source = 'closes';
  const { worker, queue, starts, home } = await working(source, { poison: { crashes: 2, window_s: 600 } }, () => 'well');
  const crash = (id) => keys.crash(source, `${source}/${id}`);
  const isAskedAbout = async (id) => Object.keys(await store.hgetall(crash(id))).some((name) => name.startsWith('look '));
  let id, n = 0;
  do { // once more where the store took too long, so that the job began uncounted
    id = `try${++n}`;
    // It was begun in another process, of which nobody knows yet whether it lives.
    await store.zadd(keys.boots(source), Date.now(), 'other');
    await store.hset(crash(id), 'other:1:0', JSON.stringify({ at: Date.now(), boot: 'other', worker: 'w', alone: false }));
    await queue.add('job', {}, { jobId: id });
    await until(async () => starts.includes(id) || isAskedAbout(id), 'it to be asked about');
  } while (starts.includes(id));
  const closes = Date.now();
  await worker.close();
  const closed = Date.now();
  const job = await queue.getJob(id);
  assert.deepEqual([await job.getState(), job.attemptsMade, starts.includes(id)], ['delayed', 0, false]);
  assert.equal(home.ledger.places.size, 0);
  const due = Number(await bull.zscore(`bull:${source}:delayed`, id)) / 4096;
  assert.ok(due > closes + 4000 && due < closed + 6000, String([due - closes, due - closed])); // five seconds after it was put off
});

test('a process that closes its last worker leaves, and says so; the next lives on its own', async () => {
  const { worker, home, end } = await working('leaves', null, () => 'well');
  await end();
  const other = { name: 'q', on() {} };
  home.add(other);
  home.note(other);
  assert.equal(home.ledger.isLeaving, false); // one of two
  home.remove(other);
  assert.equal(home.isOver, false);
  await worker.close();
  assert.equal(home.ledger.isLeaving, true);
  const boot = await until(async () => {
    const found = await store.hgetall(keys.boot('leaves', home.boot));
    return found.gone && found;
  }, 'it to be gone');
  assert.deepEqual([boot.leaving, boot.worker], ['1', home.name]);
  assert.ok(Number(await store.zscore(keys.boots('leaves'), home.boot)) < Date.now() - 10e3);
  const told = JSON.parse(await store.hget(keys.workers('leaves'), home.name));
  assert.deepEqual([told.counts.leaves.succeeded, told.queues], [1, []]);
  await until(() => home.store.isOver, 'the connection to be closed');
  assert.notEqual(homeOf({ source: 'leaves', store: STORE }), home);
});

test('a signal that the app handles says that the process was told to end, and one that it does not is left alone', async () => {
  const home = homeOf({ source: 'signals', store: STORE });
  assert.equal(homeOf({ source: 'signals', store: STORE }), home);
  home.leave();
  assert.notEqual(homeOf({ source: 'signals', store: STORE }), home); // a worker that is made after that is no part of what was told to end
  for (const signal of ['SIGTERM', 'SIGINT']) {
    assert.equal(process.listenerCount(signal), 0); // ours alone would keep the process from ending
    const own = () => {};
    process.on(signal, own);
    process.on(signal, own);
    assert.equal(process.listenerCount(signal), 3);
    process.off(signal, own);
    assert.equal(process.listenerCount(signal), 2);
    process.off(signal, own);
    assert.equal(process.listenerCount(signal), 0);
  }
  process.on('SIGUSR2', () => {});
  assert.equal(process.listenerCount('SIGUSR2'), 1);
  process.removeAllListeners('SIGUSR2');
});

one('all that has a source of its own', { concurrency: true }, (all) =>
  Promise.all(together.map(([name, run]) => all.test(name, { timeout: 180e3 }, run))));

// Alone: it empties what all sources share.
one('of policies the last good one stays: without a store, without a number, with a document that is none', async () => {
  const said = [], asked = new Store(STORE), source = 'static', forced = () => inForce.found.get('static')?.policy.max_attempts;
  const inForce = new InForce(source, 'enforce', (sentence) => said.push(sentence));
  await publish(source, { max_attempts: 7 });
  await publish('elsewhere', {}, 'of-another');
  assert.equal(await inForce.poll(asked), true);
  assert.deepEqual([forced(), inForce.found.size], [7, 1]); // those of other sources are not for it
  assert.equal(await inForce.poll(asked), false);
  for (const [text, words] of [['{', /JSON/], ['null', /no policy|not a policy/], ['{"name":"other"}', /not a policy/], ['{"name":"static"}', /no version/],
    ['{"name":"static","version":1,"policy":{"max_attempts":0}}', /max_attempts must be/]]) {
    await store.hset(keys.policies, 'static', text);
    inForce.seen = null;
    await inForce.poll(asked);
    assert.equal(forced(), 7);
    assert.match(inForce.refused.static, words);
    assert.match(inForce.refused.static, /The version before stays in force\.$/);
  }
  assert.equal(said.length, 1); // a refusal that goes on is said once
  await store.del(keys.policies);
  await store.del(keys.policiesVersion);
  assert.equal(await inForce.poll(asked), false); // the store lost its memory
  assert.equal(forced(), 7);
  assert.equal(inForce.choose('q', 't').name, 'static');
  for (let n = 0; n < 10001; n++) inForce.choose('q', `t${n}`); // names of jobs may be made up
  assert.equal(inForce.choices.size, 10000);
  inForce.take([]);
  assert.deepEqual([forced(), inForce.choose('q', 't')], [undefined, null]); // they were all taken back
  await publish(source, { max_attempts: 2 });
  assert.equal(await inForce.poll(asked), true);
  await store.hset(keys.policies, 'static', JSON.stringify({ name: 'static', version: 1, policy: { max_attempts: 4 } }));
  assert.equal(await inForce.poll(asked), false); // the number says that nothing changed
  inForce.readAt = Date.now() - 61e3;
  assert.equal(await inForce.poll(asked), true); // after a minute it is read all the same
  assert.equal(forced(), 4);
  const observing = new InForce(source, 'observe', assert.fail);
  await publish(source, { poison: { crashes: 2 } });
  await observing.poll(asked);
  assert.deepEqual([observing.choose('q', 't').isEnforced, observing.choose('q', 't').label, observing.crashesOn('q')], [false, `static@${version}`, 0]);
  for (const [held, mode] of [['drain', 'capture'], ['off', 'off']]) {
    await store.set(keys.switch, held);
    assert.equal(await inForce.poll(asked), true);
    assert.deepEqual([inForce.mode, inForce.choose('q', 't'), inForce.crashesOn('q')], [mode, null, 0]);
  }
  await store.del(keys.switch);
  assert.equal(await inForce.poll(asked), true);
  asked.close();
  await assert.rejects(inForce.poll(asked));
  assert.equal(forced(), 3);
});
