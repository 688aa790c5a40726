'use strict';
// From a document to a policy, or to what is wrong with it: jobs_admin/core/policy/parsing.py, lenient. A field that is not known, or that
// this kind of worker cannot do, makes a policy observe only; what is out of bounds is refused, and the version before stays in force.
const { LONGEST_S } = require('./backoff');

const FIELDS = ['name', 'match', 'mode', 'native', 'max_attempts', 'backoff', 'cap_s', 'jitter', 'retry_after', 'classes', 'budget',
  'poison', 'concurrency', 'rate_limit', 'exhausted', 'file_lost', 'expires_at', 'note', 'retries'];
// Fields that say how jobs are retried. A policy that sets none of them leaves retries to the job's own options.
const OF_RETRIES = ['native', 'max_attempts', 'backoff', 'cap_s', 'jitter', 'retry_after', 'classes', 'budget', 'exhausted'];
const NOT_HERE = ['concurrency', 'rate_limit'];
const BACKOFFS = {
  exponential: ['first_delay_s', 'factor'],
  linear: ['first_delay_s'],
  fixed: ['first_delay_s'],
  table: ['delays_s'],
  polynomial: ['first_delay_s', 'power', 'plus_s'],
  decorrelated: ['first_delay_s'],
};
const JITTERS = { none: [], full: [], equal: [], down: ['fraction'], plus_minus: ['fraction'], additive: ['seconds'], celery: [], sidekiq: [] };
const NAME = /^[a-z0-9][a-z0-9._-]{0,62}$/;

class Refused extends Error {}

/** One object of a document: every reader answers with the default where the field is missing or null, and throws where it is wrong. */
class Reading {
  constructor(value, path, unknown) {
    if (value === null || typeof value !== 'object' || Array.isArray(value)) throw new Refused(`${path || 'A policy'} must be an object.`);
    Object.assign(this, { value, path, unknown });
  }

  at(name) {
    return this.path ? `${this.path}.${name}` : name;
  }

  take(name) {
    return this.value[name] ?? null;
  }

  knows(names) {
    for (const name of Object.keys(this.value)) {
      const value = this.value[name];
      const isNothing = value === null || (Array.isArray(value) && !value.length);
      if (!names.includes(name) && !isNothing) this.unknown.push(this.at(name.slice(0, 40)));
    }
  }

  number(name, least, most, usual, isWhole = false) {
    const value = this.take(name);
    if (value === null) return usual;
    const is = isWhole ? Number.isInteger(value) : typeof value === 'number';
    if (!is || !(value >= least && value <= most)) {
      throw new Refused(`${this.at(name)} must be a ${isWhole ? 'whole ' : ''}number from ${least} to ${most}.`);
    }
    return value;
  }

  choice(name, choices, usual) {
    const value = this.take(name);
    if (value === null) return usual;
    if (!choices.includes(value)) throw new Refused(`${this.at(name)} must be one of ${choices.join(', ')}.`);
    return value;
  }

  truth(name, usual) {
    const value = this.take(name);
    if (value !== null && typeof value !== 'boolean') throw new Refused(`${this.at(name)} must be true or false.`);
    return value ?? usual;
  }

  text(name, usual, longest = 200) {
    const value = this.take(name);
    if (value !== null && (typeof value !== 'string' || value.length > longest)) {
      throw new Refused(`${this.at(name)} must be a text of at most ${longest} characters.`);
    }
    return value ?? usual;
  }

  glob(name) {
    return (this.text(name, '') || '*').replace(/\*+/g, '*');
  }

  list(name, longest) {
    const value = this.take(name) ?? [];
    if (!Array.isArray(value) || value.length > longest) throw new Refused(`${this.at(name)} must be a list of at most ${longest}.`);
    return value;
  }

  part(name) {
    return new Reading(this.take(name) ?? {}, this.at(name), this.unknown);
  }

  optional(name, read) {
    return this.take(name) === null ? null : read(this.part(name));
  }
}

/** The policy that a document says. Throws Refused with what is wrong. `unknown`: fields for which it only observes. */
function parse(document) {
  const unknown = [];
  const said = new Reading(document, '', unknown);
  said.knows(FIELDS);
  const named = OF_RETRIES.filter((name) => said.take(name) !== null);
  const retries = said.truth('retries', named.length > 0);
  if (!retries && named.length) throw new Refused(`${named[0]} must be omitted. A policy with retries false ignores this field.`);
  const backoff = backoffOf(said.part('backoff'));
  const policy = {
    name: said.text('name', ''),
    match: matchOf(said.part('match')),
    mode: said.choice('mode', ['observe', 'enforce'], 'observe'),
    native: said.choice('native', ['replace', 'after'], 'replace'),
    retries,
    max_attempts: !retries ? 1 : said.number('max_attempts', 1, 1000, backoff.kind === 'table' ? backoff.delays_s.length + 1 : 5, true),
    backoff,
    cap_s: said.number('cap_s', 0.001, LONGEST_S, null),
    jitter: jitterOf(said.part('jitter')),
    retry_after: retryAfterOf(said.part('retry_after')),
    classes: said.list('classes', 50).map((one, n) => classOf(new Reading(one, `classes.${n}`, unknown))),
    budget: said.optional('budget', budgetOf),
    poison: said.optional('poison', poisonOf),
    exhausted: said.choice('exhausted', ['dead', 'escalate'], 'dead'),
    unknown,
  };
  if (policy.cap_s !== null && policy.cap_s < firstDelay(backoff)) throw new Refused('cap_s must be at least the first delay.');
  if (backoff.kind === 'decorrelated' && policy.jitter.kind !== 'none') throw new Refused('jitter.kind must be none with a decorrelated backoff.');
  for (const name of NOT_HERE) if (said.take(name) !== null) unknown.push(name);
  if (unknown.length) policy.mode = 'observe';
  return policy;
}

function matchOf(said) {
  said.knows(['source', 'queue', 'task']);
  return { source: said.glob('source'), queue: said.glob('queue'), task: said.glob('task') };
}

function backoffOf(said) {
  said.knows(['kind', 'first_delay_s', 'factor', 'power', 'plus_s', 'delays_s']);
  const kind = said.choice('kind', Object.keys(BACKOFFS), 'exponential');
  const found = {
    kind,
    first_delay_s: said.number('first_delay_s', kind === 'decorrelated' ? 0.001 : 0, LONGEST_S, kind === 'polynomial' ? 1 : 2),
    factor: said.number('factor', 1, 100, 2),
    power: said.number('power', 0, 10, 1),
    plus_s: said.number('plus_s', 0, LONGEST_S, 0),
    delays_s: said.list('delays_s', 100),
  };
  means(said, BACKOFFS, kind);
  if (kind === 'table') {
    const isFine = (one) => typeof one === 'number' && one >= 0 && one <= LONGEST_S;
    if (!found.delays_s.length || !found.delays_s.every(isFine)) throw new Refused('backoff.delays_s must be a list of 1 to 100 numbers of seconds.');
  }
  return found;
}

function firstDelay(backoff) {
  return backoff.kind === 'table' ? backoff.delays_s[0] : Math.max(backoff.plus_s, backoff.first_delay_s);
}

function jitterOf(said) {
  said.knows(['kind', 'fraction', 'seconds']);
  const kind = said.choice('kind', Object.keys(JITTERS), 'none');
  means(said, JITTERS, kind);
  for (const name of JITTERS[kind]) if (said.take(name) === null) throw new Refused(`jitter.${name} is missing.`);
  return { kind, fraction: said.number('fraction', 0, 1, 0), seconds: said.number('seconds', 0, LONGEST_S, 0) };
}

/** Refuses a field that means something in another kind only: it would look as if it did something. */
function means(said, kinds, kind) {
  for (const name of new Set(Object.values(kinds).flat())) {
    const value = said.take(name);
    const isThere = value !== null && !(Array.isArray(value) && !value.length);
    if (isThere && !kinds[kind].includes(name)) throw new Refused(`${said.at(name)} has no effect for kind ${kind}.`);
  }
}

function retryAfterOf(said) {
  said.knows(['respect', 'jitter', 'cap_s']);
  return { respect: said.truth('respect', true), jitter: said.number('jitter', 0, 1, 0.2), cap_s: said.number('cap_s', 0, LONGEST_S, 86400) };
}

function classOf(said) {
  said.knows(['error', 'as']);
  if (!said.text('error', '')) throw new Refused(`${said.at('error')} is missing.`);
  return { error: said.glob('error'), as: said.choice('as', ['transient', 'permanent', 'rate_limited'], 'transient') };
}

function budgetOf(said) {
  said.knows(['per_minute', 'burst', 'group']);
  if (said.take('per_minute') === null) throw new Refused('budget.per_minute is missing.');
  const perMinute = said.number('per_minute', 0, 1e6, 0);
  if (perMinute > 0 && perMinute < 0.0001) throw new Refused('budget.per_minute must be 0, or at least 0.0001.');
  const burst = said.number('burst', 0, 1e5, perMinute ? Math.max(1, rounded(perMinute / 10)) : 0, true);
  if (perMinute && !burst) throw new Refused('budget.burst must be at least 1 if per_minute is more than 0.');
  const group = said.text('group', '') || null;
  if (group !== null && !NAME.test(group)) throw new Refused('budget.group must be a name.');
  return { per_minute: perMinute, burst, group };
}

/** As Python rounds: a half goes to the even number. */
function rounded(number) {
  const whole = Math.round(number);
  return whole - number === 0.5 && whole % 2 ? whole - 1 : whole;
}

function poisonOf(said) {
  said.knows(['crashes', 'window_s']);
  return { crashes: said.number('crashes', 1, 100, 3, true), window_s: said.number('window_s', 1, 7 * 86400, 300) };
}

module.exports = { parse, Refused };
