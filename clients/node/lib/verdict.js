'use strict';
// The one decision over a failed attempt: again, and when, or dead, and why. jobs_admin/core/verdict.py, and `decide` of its worker.
const backoff = require('./backoff');
const { classOf } = require('./matching');

/**
 * What becomes of a job whose attempt (from 1) failed so. `spend` takes one retry of the budget and answers true, false or null
 * (nobody knows); it is asked last. Answers {act: 'again', delayS, reason} or {act: 'dead', reason}.
 */
async function judge(policy, { attempt, names, retryAfterS = null, previousS = null, isUnrecoverable = false }, random, spend) {
  const wish = policy.retry_after.respect && retryAfterS > 0 ? retryAfterS : null;
  if (isUnrecoverable || classOf(policy, names) === 'permanent') return { act: 'dead', reason: 'permanent' };
  if (attempt >= policy.max_attempts) return { act: 'dead', reason: 'exhausted', escalate: policy.exhausted === 'escalate' };
  if (wish > policy.retry_after.cap_s) return { act: 'dead', reason: 'retry-after' };
  const granted = policy.budget ? await spend(policy) : true;
  if (granted === false) return { act: 'dead', reason: 'budget' };
  let delayS = backoff.delay(policy, attempt, random, previousS, wish);
  const said = wish === null ? [] : [`asked to wait ${wish} s`];
  if (granted === null) {
    // Nobody knows what is left of the budget. Retries go on while the store is away, as seldom as the policy allows.
    delayS = Math.max(delayS, policy.cap_s ?? backoff.bounds(policy, attempt)[1]);
    said.push('the budget could not be asked');
  }
  return { act: 'again', reason: said.join(', '), delayS };
}

module.exports = { judge };
