// A producer and worker of one major of BullMQ, or of "bull3" or "bull4", for tests: told what to do by lines of JSON, and telling what it did by such lines.
//
//   node worker.mjs '{"bullmq": 6, "url": "redis://127.0.0.1:6379", "prefix": "bull", "work": ["emails"]}'
//
// In, one object a line; each is answered by {"say": "done", "n": n, "answer": …} or {"say": "error", "n": n, "message": …}:
//   {"n": 1, "do": "work", "queue": "emails", "options": {…}}     a Worker on this queue      "rest": closes it again
//   {"n": 2, "do": "queue", "queue": "emails", "call": "add", "with": [name, data, options]}  any method of Queue; jobs are answered by their ids
//   {"n": 3, "do": "job", "queue": "emails", "id": "1", "call": "retry", "with": []}          any method of a job, or "asJSON" of it
//   {"n": 4, "do": "flow", "with": [tree]}                                                     FlowProducer.add
//   {"n": 5, "do": "break", "what": "partner"}  "mend"                                         jobs with {"needs": "partner"} fail meanwhile
// Out: {"say": "ready"}, then {"say": "start" | "completed" | "failed", "queue", "id", "name", "attempt", "at" (ms), …} of each job.
//
// A job does as its data says: {"fails": 2} throws so often in this process, {"needs": "partner"}, {"error": "text"}, {"code": …} on the error,
// {"unrecoverable": true} in its UnrecoverableError, {"sleep": ms}, {"crash": true} ends the process as SIGKILL does, {"returns": …},
// {"ends": "exit" | "uncaught" | "memory"} ends it in these ways, {"name": …} is its error's, {"retryAfter": seconds} stands on its error.
// With "sandbox": true jobs run in children, as sandboxed.cjs says. With "guard": {"source", "store", …} each worker has Redrive's piece.
import { createInterface } from 'node:readline';
import Redis from 'ioredis';
import { load } from './bull.mjs';
import redrive from '../../clients/node/index.js';
import { Store } from '../../clients/node/lib/redis.js';

const asked = JSON.parse(process.argv[2] ?? '{}');
const { Queue, Worker, FlowProducer, UnrecoverableError } = await load(asked.bullmq ?? 6);
const connection = new Redis(asked.url, { maxRetriesPerRequest: null });
const prefix = asked.prefix ?? 'bull';
const queues = new Map(), workers = new Map(), thrown = new Map(), broken = new Set();

// What a busy machine does not answer in a tenth of a second is no part of most tests.
const patience = 1000 * Number(process.env.REAL_PATIENCE || 0), askOnce = Store.prototype.run;
if (patience) {
  Store.prototype.run = function (script, keys, args) {
    return askOnce.call(this, script, keys, args, patience);
  };
}

const say = (what) => process.stdout.write(JSON.stringify(what) + '\n');
const queue = (name) => {
  if (!queues.has(name)) queues.set(name, new Queue(name, { connection, prefix }));
  return queues.get(name);
};

class PartnerDown extends Error {
  constructor(message, code) {
    super(message);
    this.name = 'PartnerDown';
    if (code) this.code = code;
  }
}

async function run(job) {
  const { fails = 0, needs, error, code, unrecoverable, sleep, crash, ends, name, retryAfter, returns = 'well' } = job.data ?? {};
  const told = { queue: job.queueName, id: job.id, name: job.name, attempt: job.attemptsMade };
  say({ say: 'start', ...told, at: Date.now() });
  if (crash && !(typeof crash === 'string' && !broken.has(crash))) process.kill(process.pid, 'SIGKILL');
  if (ends) await end(ends);
  if (sleep) await new Promise((go) => setTimeout(go, sleep));
  const key = `${job.queueName} ${job.id}`, before = thrown.get(key) ?? 0;
  if (before < fails || broken.has(needs)) {
    thrown.set(key, before + 1);
    const message = error ?? 'the partner is down';
    const raised = unrecoverable ? new UnrecoverableError(message) : new PartnerDown(message, code);
    if (name) raised.name = name;
    if (retryAfter) raised.retryAfter = retryAfter;
    throw raised;
  }
  return returns;
}

async function end(how) {
  if (how === 'exit') process.exit(3);
  if (how === 'uncaught') setImmediate(() => { throw new Error('nobody catches this'); });
  const held = [];
  while (how === 'memory') held.push(new Array(1e5).fill(held.length));
  await new Promise(() => {});
}

function work(name, options = {}) {
  const processor = asked.sandbox ? new URL('sandboxed.cjs', import.meta.url).pathname : run;
  let worker = new Worker(name, processor, { connection, prefix, drainDelay: 1, ...asked.options, ...options });
  if (asked.guard) worker = redrive.worker(worker, asked.guard);
  const told = (what) => (job, more) =>
    say({ say: what, queue: name, id: job?.id, name: job?.name, attempt: job?.attemptsMade, at: Date.now(), more: String(more?.message ?? more ?? '') });
  worker.on('completed', told('completed'));
  worker.on('failed', told('failed'));
  worker.on('error', (error) => say({ say: 'trouble', queue: name, message: String(error?.message) }));
  workers.set(name, worker);
  return worker.waitUntilReady();
}

const id = (answer) =>
  Array.isArray(answer) ? answer.map(id) : answer?.job ? { job: id(answer.job), children: id(answer.children ?? []) }
    : answer && typeof answer === 'object' && 'opts' in answer && 'id' in answer ? answer.id : answer;

const acts = {
  work: async ({ queue: name, options }) => void (await work(name, options)),
  rest: async ({ queue: name }) => { await workers.get(name)?.close(); workers.delete(name); },
  queue: async ({ queue: name, call, with: given = [] }) => id(await queue(name)[call](...given)),
  job: async ({ queue: name, id: of, call, with: given = [] }) => {
    const job = await queue(name).getJob(of);
    if (job && call === 'asJSON') return job.asJSON();
    return job ? id((await job[call](...given)) ?? null) : null;
  },
  flow: async ({ with: given }) => id(await new FlowProducer({ connection, prefix }).add(...given)),
  break: async ({ what }) => void broken.add(what),
  mend: async ({ what }) => void broken.delete(what),
};

for (const name of asked.broken ?? []) broken.add(name);
for (const name of asked.work ?? []) await work(name);
say({ say: 'ready', bullmq: asked.bullmq ?? 6, pid: process.pid });

const lines = createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const wanted = JSON.parse(line);
  try {
    say({ say: 'done', n: wanted.n, answer: (await acts[wanted.do](wanted)) ?? null });
  } catch (error) {
    say({ say: 'error', n: wanted.n, message: String(error?.message ?? error) });
  }
});
// Who tells it what to do has ended: nobody is left to be told.
lines.on('close', () => process.exit(0));
