// Producers and workers of one major of BullMQ, or of "bull4", for random histories (tests/histories/bullmq.py): many acts in one line.
//
//   node history.mjs '{"bullmq": 6, "url": "redis://127.0.0.1:6379", "queues": ["q0", "q1"]}'
//
// In: {"n": 1, "acts": [act, …]}. Out: {"say": "done", "n": 1, "answers": [answer, …]} or {"say": "error", "n", "message"}. Acts:
//   ["empty", queues]              everything in this database is deleted; these queues stay known as their workers made them
//   ["plan", queue, id, outcomes]  how the next executions of this job end: "ok", "fail" or "last" (no retry after it); then "ok"
//   ["add", queue, jobs]           Queue.addBulk: the ids
//   ["job", queue, id, call, …]    a method of the job; null where there is no such job
//   ["queue", queue, call, …]      a method of the Queue
//   ["ended", n]                   waits until n executions have ended since "empty"
//   ["clock", ms]                  the clock of this process is ahead by so much
import { createInterface } from 'node:readline';
import Redis from 'ioredis';
import { load } from './bull.mjs';

const asked = JSON.parse(process.argv[2]);
const { Queue, Worker, UnrecoverableError } = await load(asked.bullmq);
const connection = new Redis(asked.url, { maxRetriesPerRequest: null });
const queues = new Map(), workers = [], settings = new Map();
const now = Date.now;
let ended = 0, ahead = 0, waiting = () => {};
Date.now = () => now() + ahead;

async function run(job) {
  const outcome = (await connection.lpop(`plan:${job.queueName}:${job.id}`)) ?? 'ok';
  if (outcome === 'ok') return 'well';
  const error = new (outcome === 'last' ? UnrecoverableError : Error)(job.data.error ?? 'the partner is down');
  if (job.data.type) error.name = job.data.type;
  throw error;
}

const note = () => { ended += 1; waiting(); };
for (const name of asked.queues) {
  queues.set(name, new Queue(name, { connection }));
  const worker = new Worker(name, run, { connection, drainDelay: 1000, concurrency: 20 });
  worker.on('completed', note);
  worker.on('failed', note);
  worker.on('error', () => {});
  workers.push(worker);
}
for (const [name, queue] of queues) {
  await queue.waitUntilReady();
  await workers[settings.size].waitUntilReady();
  settings.set(name, await connection.hgetall(`bull:${name}:meta`));
}

const acts = {
  empty: async (names) => {
    await connection.flushdb();
    const all = connection.pipeline();
    for (const name of names) if (Object.keys(settings.get(name)).length) all.hset(`bull:${name}:meta`, settings.get(name));
    await all.exec();
    [ended, ahead] = [0, 0];
  },
  plan: (queue, id, outcomes) => (outcomes.length ? connection.rpush(`plan:${queue}:${id}`, ...outcomes) : null),
  add: async (queue, jobs) => (await queues.get(queue).addBulk(jobs)).map((job) => job.id),
  job: async (queue, id, call, ...given) => {
    const job = await queues.get(queue).getJob(id);
    if (job) await job[call](...given);
    return Boolean(job);
  },
  queue: async (queue, call, ...given) => void (await queues.get(queue)[call](...given)),
  ended: (n) => new Promise((reached, failed) => {
    const late = setTimeout(() => failed(new Error(`${ended} executions ended, ${n} expected`)), 15_000);
    waiting = () => {
      if (ended < n) return;
      clearTimeout(late);
      reached(ended);
    };
    waiting();
  }),
  clock: async (ms) => void (ahead = ms),
};

const say = (what) => process.stdout.write(JSON.stringify(what) + '\n');
say({ say: 'ready' });
const lines = createInterface({ input: process.stdin });
for await (const line of lines) {
  const { n, acts: wanted } = JSON.parse(line), answers = [];
  try {
    for (const [act, ...given] of wanted) answers.push((await acts[act](...given)) ?? null);
    say({ say: 'done', n, answers });
  } catch (error) {
    say({ say: 'error', n, message: String(error?.stack ?? error) });
  }
}
process.exit(0);
