// Runs the seeds' code as it is told, a line of JSON at a time, and tells what happens. Not of the seeds.
//   node run.ts '{"url": "redis://…", "role": "watch" | "work" | "adr"}'
import { createInterface } from 'node:readline';
import { Queue, Worker } from 'bullmq';
import { DeadLetterQueue } from './src/queues/dead-letter-queue';
import { PoisonPillDetector } from './src/queues/poison-pill-detector';
import { withPoisonPillDetection } from './src/workers/crash-tracker';
import { redisConnection as connection, say, state } from './src/filled-in';

const { role, watch = 'webhooks', detect } = JSON.parse(process.argv[2]);
const acts: Record<string, (asked: any) => unknown> = {
  mend: () => void (state.partnerIsDown = false),
  add: ({ queue, name, data, opts }) => new Queue(queue, { connection }).add(name, data, opts).then((job) => job.id),
};

class PartnerRefused extends Error {
  name = 'PartnerRefused';
}

if (role === 'watch') {
  // Seed 000: as many processes as one likes watch the same queue.
  const letters = new DeadLetterQueue(connection);
  letters.watchQueue(watch);
  acts.reprocess = ({ id }) => letters.reprocess(id);
}
if (role === 'work') {
  const worker = new Worker(
    watch,
    async (job) => {
      if (job.data.crash && state.partnerIsDown) {
        setImmediate(() => { throw new Error('this worker dies of it'); });
        await new Promise(() => undefined);
      }
      if (state.partnerIsDown) throw new PartnerRefused(`partner refused order ${job.data.order}`);
      return 'sent';
    },
    { connection, drainDelay: 1, lockDuration: 1000, stalledInterval: 300, maxStalledCount: 9 },
  );
  worker.on('completed', (job) => say({ say: 'completed', queue: watch, id: job.id, name: job.name, data: job.data }));
  worker.on('failed', (job) => say({ say: 'failed', queue: watch, id: job?.id, attempt: job?.attemptsMade }));
  worker.on('error', () => undefined);
  const detector = new PoisonPillDetector(connection, detect);
  withPoisonPillDetection(worker, detector);
  acts.run = ({ queue }) => new Worker(queue, async () => 'ran', { connection, drainDelay: 1 }).on('completed', (job) =>
    say({ say: 'completed', queue, id: job.id, name: job.name, data: job.data })).waitUntilReady().then(() => null);
  acts.crashed = ({ id, queue }) => detector.recordWorkerCrash(id, queue);
  await worker.waitUntilReady();
}
if (role === 'adr') {
  const adr = await import('./src/adr-0003');
  adr.worker.on('completed', (job: any) => say({ say: 'completed', queue: 'sync', id: job.id, name: job.name }));
  acts.one = () => adr.addOne();
  acts.sync = ({ name, data, opts }) => adr.syncQueue.add(name, data, opts).then((job: any) => job.id);
  await adr.worker.waitUntilReady();
}
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
