'use strict';
// How long to wait after a failed attempt: jobs_admin/core/backoff.py, held to the same vectors. Seconds; attempts count from 1.

const LONGEST_S = 30 * 86400;
const TIMES = 3; // of a decorrelated backoff

const longest = (policy) => policy.cap_s ?? LONGEST_S;
const counted = (attempt) => Math.max(1, attempt);
const product = (one, other) => (one === 0 ? 0 : one * other); // 0 * Infinity is NaN

/** What the backoff grows to, without cap and jitter. */
function envelope(backoff, attempt) {
  const n = counted(attempt);
  switch (backoff.kind) {
    case 'exponential':
      return product(backoff.first_delay_s, backoff.factor ** (n - 1));
    case 'linear':
      return backoff.first_delay_s * n;
    case 'table':
      return backoff.delays_s[Math.min(n, backoff.delays_s.length) - 1];
    case 'polynomial':
      return product(backoff.first_delay_s, (n - 1) ** backoff.power) + backoff.plus_s;
    default: // fixed; decorrelated begins with it
      return backoff.first_delay_s;
  }
}

/** The longest wait of a decorrelated backoff that can follow `attempt`, whatever was drawn before. */
const longestDrawn = (first, cap, attempt) => Math.min(cap, first * TIMES ** attempt);

/** From the wait to `width` more; at the cap as far below it, so that capped jobs keep their jitter. */
const below = (cap, wait, width) => (wait + width <= cap ? [wait, wait + width] : [Math.max(0, cap - width), cap]);

const SPREADS = {
  none: (policy, wait) => [wait, wait],
  full: (policy, wait) => [0, wait],
  equal: (policy, wait) => [wait / 2, wait],
  down: (policy, wait) => [wait * (1 - policy.jitter.fraction), wait],
  // The range is cut, not what is drawn from it: else half of all capped jobs would wait exactly the cap, and wake together.
  plus_minus: (policy, wait, cap) => [wait * (1 - policy.jitter.fraction), Math.min(cap, wait * (1 + policy.jitter.fraction))],
  additive: (policy, wait, cap) => below(cap, wait, policy.jitter.seconds),
  celery: (policy, wait) => [0, Math.floor(wait), Math.floor(wait)], // randrange(whole + 1): the end is included
  sidekiq: (policy, wait, cap, attempt) => [...below(cap, wait, 9 * attempt), 9], // rand(10) * (count + 1)
};

/** The law of the wait after `attempt`: [least, most, steps]; without steps every number in between. */
function spread(policy, attempt, previousS = null) {
  const n = counted(attempt), cap = longest(policy);
  if (policy.backoff.kind === 'decorrelated') {
    const first = policy.backoff.first_delay_s;
    const before = Math.min(Math.max(first, previousS ?? 0), longestDrawn(first, cap, n - 1));
    return [first, Math.min(cap, TIMES * before)];
  }
  return SPREADS[policy.jitter.kind](policy, Math.min(cap, envelope(policy.backoff, n)), cap, n);
}

/** The shortest and the longest wait after `attempt`, whatever was waited before. */
function bounds(policy, attempt) {
  if (policy.backoff.kind === 'decorrelated') {
    const first = policy.backoff.first_delay_s;
    return [first, longestDrawn(first, longest(policy), counted(attempt))];
  }
  return spread(policy, attempt);
}

function at([least, most, steps = 0], u) {
  const width = most - least;
  const added = steps ? (width * Math.floor(u * (steps + 1))) / steps : width * u;
  return Math.min(most, least + added);
}

/** From what a server asked for to a share more, but no more than the cap of what may be asked for. */
function asked(policy, askedS) {
  const { jitter, cap_s: cap } = policy.retry_after;
  return [askedS, Math.max(askedS, Math.min(askedS * (1 + jitter), cap))];
}

/** The wait after `attempt`, drawn with one call of `random`; where a server asked for `askedS`, never shorter. */
function delay(policy, attempt, random, previousS = null, askedS = null) {
  const u = random();
  const own = at(spread(policy, attempt, previousS), u);
  return askedS === null ? own : Math.max(own, at(asked(policy, askedS), u));
}

module.exports = { LONGEST_S, bounds, delay, envelope };
