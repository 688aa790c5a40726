'use strict';
// Which policies are in force in this process. They fail static: without the store, or with a document that cannot be used, the last good stay.
const keys = require('./keys');
const { chosen, matches } = require('./matching');
const { parse } = require('./policy');

const RUNGS = ['off', 'capture', 'observe', 'enforce']; // each a ceiling for what stands behind it
const HELD_TO = { off: 'off', drain: 'capture' }; // what `manage.py off` and `drain` leave of any policy
const REREAD_MS = 60e3; // also where the number is the same: a store that lost all may have come to it again
const REMEMBERED = 10000;

class InForce {
  constructor(source, ceiling, log) {
    Object.assign(this, { source, ceiling, log });
    this.heldTo = 'enforce';
    this.found = new Map(); // name -> {policy, version, name, label}
    this.refused = {};
    this.choices = new Map();
    this.seen = null;
    this.readAt = 0;
  }

  get mode() {
    return RUNGS[Math.min(RUNGS.indexOf(this.ceiling), RUNGS.indexOf(this.heldTo))];
  }

  get versions() {
    return Object.fromEntries([...this.found.values()].map(({ name, version }) => [name, version]));
  }

  /** The one version of the one policy that an attempt runs under; null where none matches, or none may decide here. */
  choose(queue, task) {
    const mode = this.mode;
    if (mode !== 'observe' && mode !== 'enforce') return null;
    const place = `${queue}\n${task}`;
    let one = this.choices.get(place);
    if (one === undefined) {
      const policy = chosen([...this.found.values()].map((each) => each.policy), this.source, queue, task);
      one = policy === null ? null : this.found.get(policy.name);
      if (this.choices.size < REMEMBERED) this.choices.set(place, one);
    }
    return one === null ? null : { ...one, isEnforced: one.policy.mode === 'enforce' && mode === 'enforce' };
  }

  /** The most crashes that a policy allows to some job of this queue; 0 where none counts them. */
  crashesOn(queue) {
    if (this.mode !== 'enforce') return 0;
    const counting = [...this.found.values()].filter(({ policy }) =>
      policy.mode === 'enforce' && policy.poison && matches(policy.match.queue, queue));
    return Math.max(0, ...counting.map(({ policy }) => policy.poison.crashes));
  }

  /** Read what the store says now. True where something changed that is to be told. Throws where it does not answer. */
  async poll(store) {
    const [held, number] = await store.ask(['MGET', keys.switch, keys.policiesVersion]);
    const to = HELD_TO[held] ?? 'enforce';
    const isHeld = to !== this.heldTo;
    this.heldTo = to;
    if (number === this.seen && Date.now() - this.readAt < REREAD_MS) return isHeld;
    store.ask(['MULTI']).catch(() => {});
    store.ask(['GET', keys.policiesVersion]).catch(() => {});
    store.ask(['HGETALL', keys.policies]).catch(() => {});
    const [seen, told] = await store.ask(['EXEC']);
    const before = JSON.stringify([this.versions, this.refused]);
    if (seen !== null) this.take(told); // without a number nobody ever published, or the store lost its memory: that takes nothing out of force
    this.seen = seen;
    this.readAt = Date.now();
    return isHeld || before !== JSON.stringify([this.versions, this.refused]);
  }

  take(told) {
    const found = new Map(), refused = {};
    for (let i = 0; i < told.length; i += 2) {
      const name = told[i];
      try {
        const one = usable(name, told[i + 1]);
        if (!matches(one.policy.match.source, this.source)) continue;
        found.set(name, one);
        if (one.policy.unknown.length) {
          refused[name] = `This version of the guard does not know ${one.policy.unknown.join(', ')}: the policy only observes here.`;
        }
      } catch (error) {
        refused[name] = `${String(error.message).slice(0, 300)} The version before stays in force.`;
        if (this.found.has(name)) found.set(name, this.found.get(name));
      }
      if (refused[name] && !this.refused[name]) this.log(`Redrive's policy ${JSON.stringify(name)}: ${refused[name]}`);
    }
    this.found = found;
    this.refused = refused;
    this.choices = new Map();
  }
}

function usable(name, text) {
  const said = JSON.parse(text);
  if (said === null || typeof said !== 'object' || said.name !== name) throw new Error('it is not a policy of this name.');
  if (!Number.isInteger(said.version)) throw new Error('it has no version.');
  return { policy: parse({ ...said.policy, name }), name, version: said.version, label: `${name}@${said.version}` };
}

module.exports = { InForce, RUNGS };
