'use strict';
// What is counted when a job starts and ends, where a policy asks for it: a start that has no end is a crash. The scripts, their keys and
// what they hold are those of jobs_admin/worker/at_start.py, so that the desk shows the crashes of either kind of worker alike.
const { readFileSync } = require('node:fs');
const path = require('node:path');
const gate = require('./gate');
const keys = require('./keys');
const { Script } = require('./redis');

const SILENT_MS = 15000;
const text = (name) => readFileSync(path.join(__dirname, '..', 'lua', `${name}.lua`), 'utf8');
const script = (...names) => new Script([`local SILENT_MS = ${SILENT_MS}`, ...names.map(text)].join('\n'));
const START = script('limits', 'crashes', 'at_start');
const END = script('limits', 'crashes', 'at_end');
const BEAT = script('limits', 'crashes', 'beat');
const DIED = script('died');

// How long a suspect waits for those that run beside it: after one shared death, after two, after three and more.
const PATIENCE_MS = [30e3, 120e3, 480e3, 3600e3];
const CONTROL = /^(Delayed|Waiting|WaitingChildren)Error$/;

class Ledger {
  constructor(store, source, boot, worker, host) {
    Object.assign(this, { store, source, boot, worker, host });
    this.boots = keys.boots(source);
    this.key = keys.boot(source, boot);
    this.places = new Set(); // in each of which one job at a time runs
    this.counted = 0; // jobs that are counted and run
    this.uncounted = 0; // jobs that started although a policy counts them: the store did not answer
    this.isLeaving = false;
    this.liveWorkers = 1;
  }

  /**
   * Whether the job may start now; waits until that is known. Answers {start} to be handed to `ended` or `crashed`, with {crashes} of one
   * that never starts again. `within`: its place in the gate. `isOne`: nothing else can run in this process. `isClosing`: asked while it waits.
   */
  async starting(policy, job, queue, within, isOne, isClosing) {
    let alone = isOne ? 'alone' : '';
    const place = this.take();
    const start = { policy, place, token: `${this.boot}:${process.pid}:${place}`, key: keys.crash(this.source, `${queue}/${job.id}`) };
    const told = JSON.stringify({ id: String(job.id).slice(0, 255), task: job.name.slice(0, 255), queue: queue.slice(0, 200), run: 1, key: start.key });
    for (;;) {
      let answer = null;
      try {
        answer = await this.store.run(START,
          [start.key, this.key, this.boots, keys.leases(this.source, policy.name, ''), `${this.key}:held`, keys.starts(this.source, policy.name)],
          [start.token, this.boot, this.worker, told, `${queue}/${job.id}`, alone, policy.poison.crashes, Math.ceil(policy.poison.window_s * 1000), 0, 0, 0]);
      } catch {
        this.uncounted++;
      }
      const [word, first] = answer ?? ['go'];
      if (word === 'alone') {
        const deaths = Number(first) || 1;
        alone = await gate.alone(within, PATIENCE_MS[Math.min(deaths, PATIENCE_MS.length) - 1]);
      } else if (word === 'wait') {
        // It ran in a process whose silence is not sure yet: nobody is held up by it meanwhile.
        gate.leave(within);
        await new Promise((go) => setTimeout(go, Number(first) || 1000));
        if (isClosing()) {
          this.places.delete(place);
          return { isPutOff: true };
        }
        await gate.enter(within);
        alone = isOne ? 'alone' : '';
      } else if (word === 'quarantine') {
        this.places.delete(place);
        return { start, crashes: JSON.parse(first).map(crash) };
      } else {
        this.counted++;
        return { start };
      }
    }
  }

  /** The job ended in order: what was known against it is forgotten. Nobody waits for that. */
  ended(start) {
    this.letGo(start);
    this.end(start, '', '').catch(() => {});
  }

  /** The process that ran the job, beside this one, is no more. Its crashes where it never starts again, else null. */
  async crashed(start, said) {
    this.letGo(start);
    try {
      const [word, told] = await this.end(start, 'killed', said.slice(0, 200));
      return word === 'quarantine' ? JSON.parse(told).map(crash) : null;
    } catch {
      return null;
    }
  }

  end(start, how, said) {
    const { policy, token, key } = start;
    return this.store.run(END, [key, this.key, this.boots, `${this.key}:held`],
      [token, this.boot, how, said, policy.poison.crashes, Math.ceil(policy.poison.window_s * 1000), `${token} ${process.hrtime.bigint()}`, this.worker]);
  }

  /** A replay of a job that was quarantined counts anew: BullMQ gives it the same id. */
  forget(start) {
    this.store.ask(['DEL', start.key]).catch(() => {});
  }

  /** `leaving`: what is left open is nobody's crash; `gone`: nothing runs any more. */
  async beat(leaving = '') {
    const [live] = await this.store.run(BEAT, [this.boots, this.key, `${this.key}:held`], [this.boot, this.worker, this.host, leaving], 2000);
    this.liveWorkers = Math.max(1, Number(live)); // of the source, as the store said last
  }

  /** Called while the process ends, and nothing can be waited for. */
  lastWords() {
    if (this.counted > 0 && !this.isLeaving) this.store.blurt(['EVAL', DIED.text, 1, this.boots, this.boot]);
  }

  take() {
    let place = 0;
    while (this.places.has(place)) place++;
    this.places.add(place);
    return place;
  }

  letGo(start) {
    this.counted--;
    this.places.delete(start.place);
  }
}

const crash = (one) => ({
  how: String(one.how),
  // The script counts from the last sign of life, which last words put back: never later than it was known.
  at: Math.min(one.at, one.seen ?? one.at) / 1000,
  seen_at: (one.seen ?? one.at) / 1000,
  worker: String(one.worker ?? ''),
  said: String(one.said ?? ''),
  alone: Boolean(one.alone),
  beside: Number(one.beside ?? 0),
});

module.exports = { CONTROL, Ledger, SCRIPTS: [START, END, BEAT] };
