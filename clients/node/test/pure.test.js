'use strict';
// The pure parts, held to the vectors and to the sentences that the Python side is held to.
const assert = require('node:assert/strict');
const { readFileSync } = require('node:fs');
const path = require('node:path');
const test = require('node:test');
const backoff = require('../lib/backoff');
const { chosen, classOf, matches, namesOf } = require('../lib/matching');
const { parse, Refused } = require('../lib/policy');
const { retryAfterS, seconds } = require('../lib/retry-after');
const { judge } = require('../lib/verdict');

process.env.TZ = 'Asia/Kolkata'; // a machine that is not set to UTC: nothing here may ask for its zone
const cases = (name) => JSON.parse(readFileSync(path.join(__dirname, '../../../tests/jobs_admin/core', name)));
const CASES = cases('backoff.json');
const BOTH = cases('both_workers.json');
const near = (one, other, of) => assert.ok(Math.abs(one - other) <= 1e-9 * Math.max(1, Math.abs(other)), `${one} is not ${other}: ${JSON.stringify(of)}`);
const NEARLY_ONE = 1 - Number.EPSILON / 2;

for (const { name, policy, delays } of CASES.vectors) {
  test(`a published formula gives its published delays: ${name}`, () => {
    const found = parse(policy);
    for (const { attempt, shortest_s: shortest, longest_s: longest } of delays) {
      const [least, most] = backoff.bounds(found, attempt);
      near(least, shortest);
      near(most, longest);
      near(backoff.delay(found, attempt, () => 0), shortest);
      near(backoff.delay(found, attempt, () => NEARLY_ONE), longest);
    }
  });
}

test('the same draw is the same wait as in Python', () => {
  for (const { policy, attempt, u, previous_s: previous, asked_s: asked, delay_s: wait } of BOTH.waits) {
    const found = backoff.delay(parse(policy), attempt, () => u, previous, asked ?? null);
    near(found, wait, { policy, attempt, u, previous, asked });
    assert.ok(found <= (policy.cap_s ?? backoff.LONGEST_S), JSON.stringify({ policy, attempt, u }));
  }
});

test('a wait stays within its bounds at any attempt, of every kind', () => {
  const backoffs = [
    ...['exponential', 'linear', 'fixed', 'polynomial', 'decorrelated'].map((kind) => ({ kind, first_delay_s: 2 })),
    { kind: 'table', delays_s: [1, 5, 30] },
  ];
  const jitters = ['none', 'full', 'equal', 'celery', 'sidekiq'].map((kind) => ({ kind }));
  jitters.push({ kind: 'down', fraction: 0.5 }, { kind: 'plus_minus', fraction: 0.5 }, { kind: 'additive', seconds: 7 });
  for (const kind of backoffs) {
    for (const jitter of kind.kind === 'decorrelated' ? [{ kind: 'none' }] : jitters) {
      const policy = parse({ backoff: kind, jitter, cap_s: 600 });
      for (const attempt of [1, 2, 3, 7, 40, 1e3, 1e9, 2 ** 60, Infinity]) {
        const [least, most] = backoff.bounds(policy, attempt);
        for (const u of [0, 0.3, NEARLY_ONE]) {
          const wait = backoff.delay(policy, attempt, () => u, 5);
          assert.ok(wait >= 0 && wait >= least && wait <= most && most <= 600, JSON.stringify([kind, jitter, attempt, u, wait, least, most]));
        }
      }
    }
  }
});

test('a decorrelated wait grows from the one before, and a longer wish of a server does not count for it', () => {
  const policy = parse({ backoff: { kind: 'decorrelated', first_delay_s: 2 }, cap_s: 60 });
  near(backoff.delay(policy, 2, () => NEARLY_ONE, 3), 9);
  near(backoff.delay(policy, 2, () => NEARLY_ONE, 3600), 18);
});

test('the same policy is for the same job as in Python, and the same error has the same class', () => {
  for (const [glob, name, isMatch] of BOTH.globs) assert.equal(matches(glob, name), isMatch, JSON.stringify([glob, name]));
  const all = BOTH.policies.map(parse);
  for (const [source, queue, task, name] of BOTH.chosen) {
    for (const turned of [all, [...all].reverse()]) assert.equal(chosen(turned, source, queue, task).name, name, [source, queue, task].join());
  }
  assert.equal(chosen([parse({ name: 'one', match: { source: 'other' } })], 'shop', 'x', 'y'), null);
  const policy = parse({ classes: BOTH.classes });
  for (const [names, found] of BOTH.class_of) assert.equal(classOf(policy, names), found, names.join());
});

test('an error is known by its name, its class and those above it, and its code', () => {
  class Base extends Error {}
  class Timeout extends Base {}
  const error = Object.assign(new Timeout('slow'), { name: 'TimeoutError', code: 'ETIMEDOUT' });
  assert.deepEqual(namesOf(error), ['TimeoutError', 'Timeout', 'Base', 'Error', 'ETIMEDOUT']);
  for (const [fields, names] of [
    [{ name: '' }, []], [{ name: 5 }, []], [{ name: ['a'] }, []], [{ name: 'A', code: 'B' }, ['A', 'B']], [{ name: 'A', code: 'A' }, ['A']], [{ name: 'x'.repeat(200) }, ['x'.repeat(200)]], [{ name: 'x'.repeat(201) }, []],
  ]) assert.deepEqual(namesOf(Object.assign(Object.create(null), fields)), names);
  assert.deepEqual(namesOf(Object.assign(Object.create({ constructor: undefined }), { code: 'B' })), ['B']);
  let deepest = class Nr0 {};
  for (let n = 1; n < 32; n++) deepest = { [`Nr${n}`]: class extends deepest {} }[`Nr${n}`];
  assert.deepEqual(namesOf(new deepest()), Array.from({ length: 30 }, (_, n) => `Nr${31 - n}`));
  for (const odd of [undefined, null, 'text', 3, Object.create(null), { get name() { throw new Error('no'); } }]) assert.ok(Array.isArray(namesOf(odd)));
});

test('the same wish of a server is read as in Python', () => {
  for (const [wish, found] of BOTH.wishes) assert.equal(seconds(wish, BOTH.now * 1000), found, String(wish));
  assert.equal(seconds(new Date(BOTH.now * 1000 + 1500), BOTH.now * 1000), 1.5);
  for (const none of [NaN, new Date(NaN), -Infinity]) assert.equal(seconds(none, 0), 0);
  assert.equal(seconds(Infinity, 0), Infinity);
});

test('a wish is found wherever an error carries it, the first that is one', () => {
  const now = BOTH.now * 1000;
  const of = (fields) => retryAfterS(Object.assign(new Error('429'), fields), now);
  const no = () => { throw new Error('no'); };
  const headers = (...given) => ({ headers: Object.fromEntries(given) });
  assert.equal(of({ retryAfter: 3, retryAfterMs: 9000 }), 3);
  assert.equal(of({ retryAfter: new Date(now + 5000) }), 5);
  assert.equal(of({ retryAfter: {}, retry_after: '4' }), 4); // what is no wish hides none
  assert.equal(of({ retryAfter: 'soon', retryAfterMs: 9000 }), null); // and a wish that cannot be read is one
  assert.equal(of({ retryAfterMs: 1500, response: headers(['retry-after', '7']) }), 1.5);
  assert.equal(of({ retryAfterMs: '1500' }), null);
  assert.equal(of({ response: headers(['x', '1'], ['Retry-After', '7']), headers: { 'retry-after': '9' } }), 7);
  assert.equal(of({ response: { headers: new Headers({ 'retry-after': '8' }) } }), 8);
  assert.equal(of({ response: { headers: new Headers() }, headers: { 'retry-after': ['9', '10'] } }), 9);
  assert.equal(of({ headers: { 'retry-after': '17' } }), 17);
  assert.equal(of({ response: 'text', headers: { 'retry-after': [] } }), null);
  assert.equal(of({}), null);
  const many = Array.from({ length: 999 }, (_, n) => [`x${n}`, '1']);
  assert.equal(of(headers(...many, ['retry-after', '6'])), 6);
  assert.equal(of(headers(...many, ['x', '1'], ['retry-after', '6'])), null);
  assert.equal(retryAfterS({ get retryAfter() { return no(); }, get response() { return no(); }, headers: { 'retry-after': '2' } }, now), 2);
  for (const odd of [undefined, null, 'text', 3]) assert.equal(retryAfterS(odd, now), null);
});

/** What a policy says, in the form in which the desk publishes it. */
function written(policy) {
  const { unknown, retries, ...found } = policy;
  if (!retries) {
    const { name, match, mode, poison } = found;
    return { name, match, mode, ...(poison === null ? {} : { poison }), retries };
  }
  const fields = { exponential: ['factor'], table: ['delays_s'], polynomial: ['power', 'plus_s'] }[policy.backoff.kind] ?? [];
  const { kind, first_delay_s: first, fraction, seconds: added } = { ...policy.jitter, ...policy.backoff };
  found.backoff = { kind, ...(kind === 'table' ? {} : { first_delay_s: first }), ...Object.fromEntries(fields.map((name) => [name, policy.backoff[name]])) };
  const share = ['down', 'plus_minus'].includes(policy.jitter.kind) ? { fraction } : {};
  found.jitter = { kind: policy.jitter.kind, ...share, ...(policy.jitter.kind === 'additive' ? { seconds: added } : {}) };
  for (const name of ['cap_s', 'budget', 'poison']) if (found[name] === null) delete found[name];
  if (found.budget?.group === null) found.budget = { per_minute: found.budget.per_minute, burst: found.budget.burst };
  return found;
}

test('the same document is the same policy as in Python, or none', () => {
  for (const [said, { file_lost, expires_at, note, ...read }] of BOTH.read) {
    const found = parse(said);
    assert.deepEqual([written(found), found.unknown], [read, []], JSON.stringify(said));
  }
  for (const wrong of BOTH.refused) assert.throws(() => parse(wrong), Refused, JSON.stringify(wrong));
  for (const [newer, unknown] of BOTH.newer) {
    const found = parse(newer);
    assert.deepEqual([found.unknown, found.mode], [unknown, unknown.length ? 'observe' : 'enforce'], JSON.stringify(newer));
  }
});

test('what this kind of worker cannot do makes a policy observe', () => {
  for (const field of [{ concurrency: { key: 'task', limit: 1 } }, { rate_limit: { max: 1 } }]) {
    const found = parse({ mode: 'enforce', ...field });
    assert.deepEqual([found.mode, found.unknown], ['observe', Object.keys(field)]);
  }
});

test('a refusal names the field, and what it must be', () => {
  for (const [wrong, said] of [
    [3, 'A policy must be an object.'],
    [{ match: [] }, 'match must be an object.'],
    [{ max_attempts: 0 }, 'max_attempts must be a whole number from 1 to 1000.'],
    [{ retry_after: { jitter: 2 } }, 'retry_after.jitter must be a number from 0 to 1.'],
    [{ retry_after: { respect: 1 } }, 'retry_after.respect must be true or false.'],
    [{ classes: [{ error: 'A' }, {}] }, 'classes.1.error is missing.'],
    [{ backoff: { kind: 'fixed', factor: 2 } }, 'backoff.factor has no effect for kind fixed.'],
  ]) assert.throws(() => parse(wrong), { message: said });
});

test('the same failure gets the same verdict as in Python', async () => {
  for (const { policy, ended, budget, asked, reason, delay_s: delayS, asked_s: wish } of BOTH.verdicts) {
    let spent = 0;
    const { attempt, error_names: names, retry_after_s: retryAfter, previous_s: previousS } = ended;
    const found = await judge(parse(policy), { attempt, names, retryAfterS: retryAfter, previousS }, () => 0.5, async () => (spent++, budget));
    const of = JSON.stringify([policy, ended, budget]);
    // A policy without a budget has nothing to spend, which is asked of nobody here.
    assert.equal(spent, policy.budget ? asked : 0, of);
    if (reason) assert.deepEqual([found.act, found.reason, found.delayS], ['dead', reason, undefined], of);
    else {
      near(found.delayS, delayS, of);
      assert.deepEqual([found.act, found.reason], ['again', wish === null ? '' : `asked to wait ${wish} s`], of);
    }
  }
});

test('what BullMQ calls unrecoverable is permanent, what is exhausted may be told to people, and without an answer a budget is shared out', async () => {
  const of = (policy, ended = {}, granted = true) => judge(parse(policy), { attempt: 1, names: ['Error'], ...ended }, () => 0.5, async () => granted);
  assert.deepEqual(await of({}, { isUnrecoverable: true }), { act: 'dead', reason: 'permanent' });
  assert.deepEqual(await of({ max_attempts: 1 }), { act: 'dead', reason: 'exhausted', escalate: false });
  assert.deepEqual(await of({ max_attempts: 1, exhausted: 'escalate' }), { act: 'dead', reason: 'exhausted', escalate: true });
  const policy = { backoff: { kind: 'fixed', first_delay_s: 2 }, jitter: { kind: 'additive', seconds: 4 }, budget: { per_minute: 60 } };
  const shared = "the budget could not be read: by this process' share of it";
  assert.deepEqual(await of(policy, {}, 0), { act: 'again', reason: shared, delayS: 4 });
  assert.deepEqual(await of(policy, {}, 30), { act: 'again', reason: `${shared}, its turn came 30.0 s later`, delayS: 34 });
  assert.deepEqual(await of(policy, {}, false), { act: 'dead', reason: 'budget' });
});
