// The producer, the worker and the dashboard of bench/bullmq_incident.py: BullMQ's own parts, and nothing else touches its keys.
//
//   node bullmq_incident.mjs '{"do": "make", "url": …, "queue": "webhooks", "jobs": 45000}'    adds them, and lets a worker fail each of them
//                                 "flow"  … "rate": 300, "seconds": 200, "takes_ms": 50      adds as many a second, which all run well
//                                 "work"  … "partner": "http://…", "lines": file, "at_once": 150 until its input ends
//                                 "retryJobs" | "retryEach" | "counts"                             what dashboards do on "retry all"; BullMQ's own view
import { openSync, writeSync } from 'node:fs';
import { Agent, request } from 'node:http';
import Redis from 'ioredis';
import { Queue, Worker } from 'bullmq';

const asked = JSON.parse(process.argv[2]);
const connection = new Redis(asked.url, { maxRetriesPerRequest: null });
const queue = new Queue(asked.queue, { connection });
const say = (what) => process.stdout.write(JSON.stringify(what) + '\n');
const now = () => Date.now() / 1000;

class ServiceUnavailable extends Error {
  constructor(status) {
    super(`the customer's endpoint answered ${status}`);
    this.name = 'ServiceUnavailable';
  }
}

// Each tenth job is urgent; all may run three times.
const job = (n) => ({
  name: 'webhook',
  data: { order: n, customer: `c${n % 8}`, event: 'order.paid', body: 'x'.repeat(200) },
  opts: { attempts: 3, backoff: { type: 'exponential', delay: 1000 }, ...(n % 10 ? {} : { priority: 3 }) },
});

async function make() {
  const began = now();
  for (let n = 0; n < asked.jobs; n += 1000) {
    await queue.addBulk(Array.from({ length: Math.min(1000, asked.jobs - n) }, (_, i) => job(n + i)));
  }
  const added = now();
  const worker = new Worker(asked.queue, async () => { throw new ServiceUnavailable(503); }, { connection, concurrency: 300 });
  worker.on('error', (error) => say({ say: 'trouble', message: error.message }));
  while ((await queue.getFailedCount()) < asked.jobs) await new Promise((go) => setTimeout(go, 200));
  await worker.close();
  say({ say: 'made', added_s: added - began, died_s: now() - added });
  process.exit(0);
}

// Other customers' jobs in the same queue. They are taken out when they have run: what is counted at the end are the dead ones.
async function flow() {
  const worker = new Worker(asked.queue, () => new Promise((go) => setTimeout(go, asked.takes_ms)), { connection, concurrency: asked.rate });
  let ran = 0;
  worker.on('completed', () => { ran += 1; });
  worker.on('error', (error) => say({ say: 'trouble', message: error.message }));
  const began = now();
  for (let added = 0, due; added < asked.rate * asked.seconds; added += due) {
    due = Math.min(Math.floor((now() - began) * asked.rate), asked.rate * asked.seconds) - added;
    await queue.addBulk(Array.from({ length: due }, (_, i) => ({ ...job(added + i), opts: { removeOnComplete: true } })));
    await new Promise((go) => setTimeout(go, 100));
  }
  while (ran < asked.rate * asked.seconds) await new Promise((go) => setTimeout(go, 100));
  await worker.close();
  say({ say: 'flowed', jobs: ran, seconds: now() - began });
}

function work() {
  const agent = new Agent({ keepAlive: true, maxSockets: asked.at_once });
  const lines = openSync(asked.lines, 'a');
  const post = (data) => new Promise((done) => {
    const sent = request(`${asked.partner}/hook`, { method: 'POST', agent, timeout: 10000 }, (answer) => {
      answer.resume();
      answer.on('end', () => done(answer.statusCode));
    });
    sent.on('error', () => done(0));
    sent.on('timeout', () => sent.destroy());
    sent.end(JSON.stringify(data));
  });
  const worker = new Worker(asked.queue, async (job) => {
    const [status] = await Promise.all([post(job.data), new Promise((go) => setTimeout(go, asked.takes_ms))]);
    writeSync(lines, `${job.id} ${status === 200 ? 'ok' : 'failed'} ${now().toFixed(3)} ${job.attemptsMade}\n`);
    if (status !== 200) throw new ServiceUnavailable(status);
  }, { connection, concurrency: asked.at_once, drainDelay: 1 });
  worker.on('error', (error) => say({ say: 'trouble', message: error.message }));
  process.stdin.on('end', () => process.exit(0)).resume();
  return worker.waitUntilReady();
}

const acts = {
  make,
  flow,
  work,
  retryJobs: () => queue.retryJobs({ state: 'failed' }),
  // What Bull Board's handler of "retry all" does (packages/api/src/handlers/retryAll.ts).
  retryEach: async () => { await Promise.all((await queue.getJobs(['failed'])).map((job) => job.retry())); },
  counts: async () => ({ counts: await queue.getJobCounts() }),
};

say({ say: 'ready', at: now() });
const answer = await acts[asked.do]();
say({ say: 'done', at: now(), ...(answer?.counts ? answer : {}) });
if (asked.do !== 'work') process.exit(0);
