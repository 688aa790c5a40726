// Programs that put BullMQ jobs aside as applications do, run on command, a line of JSON at a time; what happens is reported.
//   node run.ts '{"url": "redis://…", "role": "watch" | "work" | "forward"}'
// The fields of the entries are those of pages that many copy: docs/policies.md names them.
import { createInterface } from 'node:readline';
import { Queue, QueueEvents, Worker, type Job } from 'bullmq';
import Redis from 'ioredis';

const { url, role, watch = 'webhooks', detect = {} } = JSON.parse(process.argv[2]);
const connection = new Redis(url, { maxRetriesPerRequest: null });
const queue = (name: string, more: object = {}) => new Queue(name, { connection, ...more });
const say = (what: object) => process.stdout.write(`${JSON.stringify(what)}\n`);
const isLast = (job: Job) => job.attemptsMade >= (job.opts.attempts ?? 1);
const named = (name: string, message: string) => Object.assign(new Error(message), { name });
let partnerIsDown = true;

const acts: Record<string, (asked: any) => unknown> = {
  mend: () => void (partnerIsDown = false),
  add: ({ queue: to, name, data, opts }) => queue(to).add(name, data, opts).then((job) => job.id),
};

// Listens from outside the worker. Several processes may do so on one queue: then each leaves an entry.
function listen() {
  const letters = queue('dead-letter');
  new QueueEvents(watch, { connection }).on('failed', ({ jobId, failedReason }) => {
    queue(watch)
      .getJob(jobId)
      .then((job) => job && isLast(job) && letters.add('failed-job', {
        originalQueue: watch, originalJobId: jobId, originalJobName: job.name, originalData: job.data,
        originalOptions: job.opts, failureReason: failedReason, failureStack: job.stacktrace?.join('\n'),
        attemptsMade: job.attemptsMade, failedAt: new Date().toISOString(),
      }, { attempts: 1, removeOnComplete: false, removeOnFail: false }))
      .catch((error) => say({ say: 'not forwarded', id: jobId, message: String(error) }));
  });
  acts.reprocess = async ({ id }) => {
    const entry = await letters.getJob(id);
    const { originalQueue, originalJobName, originalData, originalOptions } = entry!.data;
    const again = await queue(originalQueue).add(originalJobName, originalData, { ...originalOptions, attempts: 3 });
    await entry!.remove();
    return again.id;
  };
}

// Counts the crashes of a job, and at the third puts it into another queue and takes it out of its own.
async function crashed(jobId: string, from: string) {
  const { crashThreshold = 3, crashWindowMs = 300_000, quarantineQueueName = 'quarantine' } = detect;
  const place = `poison:${from}:${jobId}`;
  const now = new Date().toISOString();
  const before = JSON.parse((await connection.get(place)) ?? `{"crashCount": 0, "firstCrashAt": "${now}"}`);
  const record = { jobId, crashCount: before.crashCount + 1, firstCrashAt: before.firstCrashAt, lastCrashAt: now };
  await connection.setex(place, Math.ceil(crashWindowMs / 1000), JSON.stringify(record));
  if (record.crashCount < crashThreshold) return false;
  const job = await queue(from).getJob(jobId);
  if (job) {
    await queue(quarantineQueueName).add('quarantined-job', {
      originalQueue: from, originalJobId: jobId, originalData: job.data, poisonPillRecord: record, quarantinedAt: now,
    }, { attempts: 1, removeOnFail: false });
    await job.remove();  // fails where the job is still locked: a crash more, and a second entry
    say({ say: 'alert', id: jobId, ...record });
  }
  return true;
}

async function work() {
  let current: string | undefined;
  const worker = new Worker(watch, async (job) => {
    if (job.data.crash && partnerIsDown) {
      setImmediate(() => { throw new Error('this worker dies of it'); });
      await new Promise(() => undefined);
    }
    if (partnerIsDown) throw named('PartnerRefused', `partner refused order ${job.data.order}`);
    return 'sent';
  }, { connection, drainDelay: 1, lockDuration: 1000, stalledInterval: 300, maxStalledCount: 9 });
  worker.on('active', (job) => (current = job.id));
  worker.on('completed', (job) => {
    current = undefined;
    say({ say: 'completed', queue: watch, id: job.id, name: job.name, data: job.data });
  });
  worker.on('failed', (job) => {
    current = undefined;
    say({ say: 'failed', queue: watch, id: job?.id, attempt: job?.attemptsMade });
  });
  worker.on('error', () => undefined);
  for (const event of ['uncaughtException', 'unhandledRejection']) {
    process.on(event, async () => {
      if (current) await crashed(current, watch);
      process.exit(1);
    });
  }
  acts.crashed = ({ id, queue: from }) => crashed(id, from);
  acts.run = ({ queue: from }) => new Worker(from, async () => 'ran', { connection, drainDelay: 1 }).on('completed', (job) =>
    say({ say: 'completed', queue: from, id: job.id, name: job.name, data: job.data })).waitUntilReady().then(() => null);
  await worker.waitUntilReady();
}

function pushCalendar(unitId: number) {
  throw named('ChannelDown', `channel of unit ${unitId} refused the calendar`);
}

// The worker itself forwards what it gave up, as its job stands.
async function forward() {
  const backoff = { type: 'exponential', delay: 1000 };
  const source = queue('sync', { defaultJobOptions: { attempts: 5, backoff, removeOnComplete: 100, removeOnFail: 1000 } });
  const letters = queue('channel-dead-letter');
  const worker = new Worker('sync', async (job) => {
    const { unitId, syncType } = job.data;
    if (!partnerIsDown) return { success: true };
    if (syncType === 'pricing') throw new Error(`Permanent failure: unit ${unitId} has no price list`);
    pushCalendar(unitId);
  }, { connection, concurrency: 5, limiter: { max: 100, duration: 60_000 } });
  worker.on('failed', async (job, error) => {
    if (!job || !isLast(job)) return;
    const entry = { originalJob: job.asJSON(), error: error.message, failedAt: new Date() };
    await letters.add('failed-job', entry, { priority: 1 });  // in BullMQ the highest
  });
  worker.on('completed', (job) => say({ say: 'completed', queue: 'sync', id: job.id, name: job.name }));
  acts.sync = ({ name, data, opts }) => source.add(name, data, opts).then((job) => job.id);
  await worker.waitUntilReady();
}

await { watch: listen, work, forward }[role as 'watch' | 'work' | 'forward']();
say({ say: 'ready', role });

const lines = createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const asked = JSON.parse(line);
  try {
    say({ say: 'done', n: asked.n, answer: (await acts[asked.do](asked)) ?? null });
  } catch (error: any) {
    say({ say: 'error', n: asked.n, message: String(error?.stack ?? error) });
  }
});
lines.on('close', () => process.exit(0));
