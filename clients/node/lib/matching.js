'use strict';
// Which policy is for a job, and which class an error has: jobs_admin/core/matching.py. In a glob `*` matches anything, and nothing else is special.

const BUILT_IN = 'builtins.';

/** Whether the glob matches the whole name. In linear time, whatever the glob: each part is looked for once. */
function matches(glob, name) {
  const [first, ...others] = glob.split('*');
  if (!others.length) return glob === name;
  const last = others.pop();
  if (name.length < first.length + last.length || !name.startsWith(first) || !name.endsWith(last)) return false;
  let at = first.length;
  const end = name.length - last.length;
  for (const part of others) {
    const found = name.indexOf(part, at);
    if (found < 0 || found + part.length > end) return false;
    at = found + part.length;
  }
  return true;
}

const rank = ({ match }) =>
  [match.task, match.queue, match.source].map((glob) => (glob.includes('*') ? [0, glob.indexOf('*')] : [1, 0])).flat();

/** The policy for a job: the most particular one by task, then by queue, then by source; null where none is for it. */
function chosen(policies, source, queue, task) {
  let best = null;
  for (const one of policies) {
    const { match } = one;
    if (!matches(match.task, task) || !matches(match.queue, queue) || !matches(match.source, source)) continue;
    if (best === null || isBefore(best, one)) best = one;
  }
  return best;
}

function isBefore(one, other) {
  const mine = rank(one), theirs = rank(other);
  for (let i = 0; i < mine.length; i++) if (mine[i] !== theirs[i]) return mine[i] < theirs[i];
  return one.name < other.name;
}

/** The class of an error, by the first entry of the policy that fits one of its names; transient without one. */
function classOf(policy, names) {
  const short = names.map((name) => name.slice(name.lastIndexOf('.') + 1));
  for (const { error, as } of policy.classes) {
    const glob = error.startsWith(BUILT_IN) ? error.slice(BUILT_IN.length) : error;
    if ((glob.includes('.') ? names : short).some((name) => matches(glob, name))) return as;
  }
  return 'transient';
}

/** What an error is called: its `name`, its class and those above it, and its `code` (ECONNRESET). Never throws. */
function namesOf(error) {
  const found = [];
  const add = (name) => {
    if (typeof name === 'string' && name && name.length <= 200 && !found.includes(name)) found.push(name);
  };
  try {
    add(error.name);
    let one = Object.getPrototypeOf(error);
    for (let i = 0; one && one !== Object.prototype && i < 30; i++, one = Object.getPrototypeOf(one)) add(one.constructor?.name);
    add(error.code);
  } catch {
    // Somebody's own getter: what was found until then has to do.
  }
  return found;
}

module.exports = { matches, chosen, classOf, namesOf };
