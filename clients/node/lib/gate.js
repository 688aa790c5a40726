'use strict';
// Lets one job of this process run alone: others that are about to begin wait meanwhile, and it waits until those that run are through.

let running = 0;
let wanted = 0; // jobs that wait to run alone
let isTaken = false; // by one that does
let waiting = [];

/** A place for a job, which is to be left again. Nobody waits where no job has to run alone. */
async function enter(place = {}) {
  while (isTaken || wanted > 0) await change();
  running++;
  return Object.assign(place, { isIn: true, isAlone: false });
}

/** May be called twice. */
function leave(place) {
  if (!place.isIn) return;
  place.isIn = false;
  if (place.isAlone) isTaken = false;
  running--;
  tell();
}

/** Of a job that is inside: `alone`, or `beside` where the others took longer than `ms`. */
async function alone(place, ms) {
  const ends = Date.now() + ms;
  leave(place);
  wanted++;
  while ((isTaken || running > 0) && Date.now() < ends) await change(ends - Date.now());
  wanted--;
  place.isIn = true;
  place.isAlone = !isTaken && running === 0;
  isTaken ||= place.isAlone;
  running++;
  tell();
  return place.isAlone ? 'alone' : 'beside';
}

function tell() {
  const told = waiting;
  waiting = [];
  for (const go of told) go();
}

function change(ms) {
  return new Promise((resolve) => {
    // Cleared when it is told: a patience of an hour must not keep a process that is done from ending.
    const timer = ms === undefined ? undefined : setTimeout(resolve, ms);
    waiting.push(() => {
      clearTimeout(timer);
      resolve();
    });
  });
}

module.exports = { enter, leave, alone };
