'use strict';
const assert = require('node:assert/strict');
const test = require('node:test');
const gate = require('../lib/gate');

const turn = () => new Promise((go) => setImmediate(go));
const timers = () => process.getActiveResourcesInfo().filter((one) => one === 'Timeout').length;

/** A place that is asked for: whether it was given yet. */
function asked() {
  const one = { isGiven: false };
  one.place = gate.enter().then((place) => {
    one.isGiven = true;
    return place;
  });
  return one;
}

test('where nobody has to run alone nobody waits', async () => {
  const places = [await gate.enter(), await gate.enter()];
  places.forEach(gate.leave);
});

test('a job that has to run alone waits for those that run, and those that come wait for it', async () => {
  const runs = await gate.enter(), suspect = await gate.enter();
  const before = timers();
  const alone = gate.alone(suspect, 3600e3);
  const first = asked(), second = asked();
  await turn();
  assert.ok(!first.isGiven);
  gate.leave(runs);
  assert.equal(await alone, 'alone');
  assert.equal(timers(), before); // nothing is left that would keep the process alive
  assert.ok(!first.isGiven && !second.isGiven);
  gate.leave(suspect);
  gate.leave(await first.place);
  gate.leave(await second.place);
});

test('one whose patience ends runs beside the others, and then nobody waits for it', async () => {
  const runs = await gate.enter(), suspect = await gate.enter();
  assert.equal(await gate.alone(suspect, 20), 'beside');
  const next = asked();
  await turn();
  assert.ok(next.isGiven);
  for (const one of [runs, suspect, await next.place]) gate.leave(one);
});

test('of two that have to run alone one waits for the other, and does not let go of what that holds', async () => {
  const first = await gate.enter(), second = await gate.enter();
  const waits = gate.alone(second, 20);
  assert.equal(await gate.alone(first, 3600e3), 'alone');
  assert.equal(await waits, 'beside');
  gate.leave(second);
  const next = asked();
  await turn();
  assert.ok(!next.isGiven);
  gate.leave(first);
  gate.leave(await next.place);
});

test('a place that is left twice is left once, and one that was left can be taken again', async () => {
  const one = await gate.enter(), other = await gate.enter();
  gate.leave(one);
  gate.leave(one);
  assert.equal(await gate.enter(one), one);
  assert.equal(await gate.alone(one, 20), 'beside'); // the other still runs
  gate.leave(one);
  gate.leave(other);
  assert.equal(await gate.alone(await gate.enter(other), 20), 'alone');
  gate.leave(other);
});
