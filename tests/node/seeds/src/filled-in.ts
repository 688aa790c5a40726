// What the seeds leave out: where Redis is, the queue for dead letters, what jobs do, and who is told. Not of the seeds.
import { Queue } from 'bullmq';
import Redis from 'ioredis';

const { url } = JSON.parse(process.argv[2]);
export const say = (what: object) => process.stdout.write(JSON.stringify(what) + '\n');
export const redisConnection = new Redis(url, { maxRetriesPerRequest: null });
export const dlqQueue = new Queue('adr-dead-letter', { connection: redisConnection });
export const logger = { error: (message: string, more: object) => say({ say: 'logged', message, ...more }) };
export const data = { unitId: 7, syncType: 'availability' };

export const state = { partnerIsDown: true };
export class ChannelDown extends Error {
  name = 'ChannelDown';
}
export async function syncAvailability(unitId: number) {
  if (state.partnerIsDown) throw new ChannelDown(`channel of unit ${unitId} refused the calendar`);
}
export async function syncPricing(unitId: number) {
  if (state.partnerIsDown) throw new Error(`unit ${unitId} has no price list`);
}
export const isRateLimitError = (error: any) => error?.status === 429;
export const isValidationError = (error: any) => error instanceof Error && /no price list/.test(error.message);
// A name that the detector of seed 000 takes for given.
(globalThis as any).sendAlert = async (alert: object) => say({ say: 'alert', ...alert });
