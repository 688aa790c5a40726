'use strict';
// The one decision over a failed attempt: again, and when, or dead, and why. jobs_admin/core/matching.py, and `decide` of its worker.
const backoff = require('./backoff');
const { classOf } = require('./matching');

/**
 * What becomes of a job whose attempt (from 1) failed so. `spend` takes one retry of the budget and answers true, false, or in
 * how many seconds it is this job's turn by the process' share of it (the store did not answer); it is asked last. Answers {act: 'again', delayS, reason} or {act: 'dead', reason}.
 */
async function judge(policy, { attempt, names, retryAfterS = null, previousS = null, isUnrecoverable = false }, random, spend) {
  const wish = policy.retry_after.respect && retryAfterS > 0 ? retryAfterS : null;
  if (isUnrecoverable || classOf(policy, names) === 'permanent') return { act: 'dead', reason: 'permanent' };
  if (attempt >= policy.max_attempts) return { act: 'dead', reason: 'exhausted', escalate: policy.exhausted === 'escalate' };
  if (wish > policy.retry_after.cap_s) return { act: 'dead', reason: 'retry-after' };
  const granted = policy.budget ? await spend(policy) : true;
  if (granted === false) return { act: 'dead', reason: 'budget' };
  const turnS = typeof granted === 'number' ? granted : 0;
  const delayS = turnS + backoff.delay(policy, attempt, random, previousS, wish);
  const said = wish === null ? [] : [`asked to wait ${wish} s`];
  if (typeof granted === 'number') {
    said.push(`the budget could not be read: by this process' share of it${turnS ? `, its turn came ${turnS.toPrecision(3)} s later` : ''}`);
  }
  return { act: 'again', reason: said.join(', '), delayS };
}

module.exports = { judge };
