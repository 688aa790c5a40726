// Bull 3 and 4 with those parts of BullMQ's interface that the scripts of this folder use.
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);

export class UnrecoverableError extends Error {}

// What a script knows as `bullmq`: a major of BullMQ, or "bull3" and "bull4".
export async function load(which) {
  if (!String(which).startsWith('bull')) return import(`bullmq${which}`);
  const Bull = require(which);
  const open = (name, { connection, prefix = 'bull' }, settings = {}) => {
    const { host, port, db, username, password } = connection.options;
    return new Bull(name, { prefix, redis: { host, port, db, username, password }, settings: { drainDelay: 1, ...settings } });
  };
  class Queue {
    constructor(name, options) {
      this.own = open(name, options);
      this.own.on('error', () => {});
    }
    waitUntilReady() { return this.own.isReady(); }
    add(...given) { return this.own.add(...given); }
    async addBulk(jobs) {
      const added = [];
      for (const { name, data, opts } of jobs) added.push(await this.own.add(name, data, opts));
      return added;
    }
    async getJob(id) {
      const job = await this.own.getJob(id);
      if (job) job.asJSON = job.toJSON;
      return job;
    }
    clean(grace, limit, kind) { return this.own.clean(grace, kind, limit); }
    pause() { return this.own.pause(); }
    resume() { return this.own.resume(); }
  }
  class Worker {
    constructor(name, run, { concurrency = 1, settings, ...options }) {
      this.own = open(name, options, settings);
      this.own.process('*', concurrency, async (job) => {
        job.queueName = name;
        try {
          return await run(job);
        } catch (error) {
          if (error instanceof UnrecoverableError) await job.discard();
          throw error;
        }
      });
    }
    on(...given) { this.own.on(...given); }
    waitUntilReady() { return this.own.isReady(); }
    close() { return this.own.close(); }
  }
  return { Queue, Worker, FlowProducer: null, UnrecoverableError };
}
